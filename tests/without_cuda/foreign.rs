//! Programs that have nothing to do with CUDA print the same, leave the same files and exit with the same status without the
//! library, with it, and with it beside another one that is preloaded before or after it.

use support::{Finished, Job, client, in_path, left_out};

use super::{HELLO, files};
use crate::dlsym::dlsym_version;

/// Names of the programs that must be installed, and a script for `bash` that prints the same each time.
const PROGRAMS: &[&str] = &[
    "bash => echo $((6*7)); ls -a | sort; (exit 5); echo $?; type cd; sleep 0 & wait; kill -TERM $$",
    "sh => sh -c 'trap \"echo bye\" EXIT; (exit 3); echo $?; yes | head -n 2; ls /nothing-there; cat <<X\nhere\nX'",
    "sort sha256sum timeout env dd => seq 1000 | sort -R --random-source=/dev/zero | sort -n | sha256sum; timeout \
     0.1 sleep 9; echo $?; env -i /bin/echo clean; dd if=/dev/zero bs=1k count=64 status=none | wc -c; nohup true; \
     mkfifo f; echo through > f & cat f; cp -a f g; ln -s f h; readlink h; tee t < /dev/null; stat -c %s t",
    "python3 => python3 processes.py",
    "perl => perl -e '$|=1; for (1..3) { if (!fork) { print \"child $_\\n\"; exit $_ } wait; print $? >> 8, qq(\\n) \
     } open P, \"-|\", \"echo piped\"; print <P>; kill 9, $$'",
    "git => export GIT_AUTHOR_DATE=2000-01-01T00:00Z GIT_COMMITTER_DATE=2000-01-01T00:00Z HOME=$PWD; git init -q -b \
     main r; cd r; git config user.email a@b; git config user.name a; cp ../hello.c .; git add .; git commit -qm \
     one; git log --format=%H; git gc -q; git fsck; git clone -q . ../s; git -C ../s log --oneline; git nonsense",
    "tar gzip => tar --sort=name --mtime=@0 --owner=0 --group=0 --numeric-owner --mode=644 -cf - hello.c | gzip -n \
     | sha256sum; tar xf /nothing",
    "gcc => gcc -O2 -pthread -o threads threads.c && ./threads; gcc -static -o s hello.c && ./s; gcc nothing.c",
    "javac java => javac Main.java && java -cp . Main",
    "node => node processes.js",
    "gdb => gdb -nx -batch -ex 'print 6*7' 2>&1",
    "awk sed find xargs => seq 99 | awk '{s+=$1} END{print s; system(\"echo sub\")}'; seq 4 | xargs -P 4 -n 1 sh -c \
     'exit 1'; echo $?; find . -name '*.c' -exec wc -c {} +",
    "ruby => ruby -e 'fork { puts 1; exit! 3 }; Process.wait; p $?.exitstatus; p `echo 2`'",
    "bash => ulimit -v 400000; ulimit -n 12; /bin/ls; sh -c 'echo $((6*7))'; (ulimit -f 1; seq 9999 > big; echo $?)",
    "setsid => setsid -w sh -c 'exec 0<&- 1>&- 2>&-; sleep 0.1; exit 7'; echo $?",
];

/// Fork, spawn and forkserver, threads, pipes, descriptors that are closed, and a child that execs.
const PYTHON: &str = r"
import asyncio, concurrent.futures, ctypes, multiprocessing, os, signal, sqlite3, subprocess, sys, threading

def square(x):
    return x * x

async def ask():
    child = await asyncio.create_subprocess_exec('echo', 'async', stdout=asyncio.subprocess.PIPE)
    return (await child.communicate())[0]

if __name__ == '__main__':
    print(subprocess.run(['sh', '-c', 'echo out; exit 3'], stdout=subprocess.PIPE, close_fds=True))
    for method in ['fork', 'spawn', 'forkserver']:
        with multiprocessing.get_context(method).Pool(3) as pool:
            print(method, pool.map(square, range(5)))
    print(asyncio.run(ask()), sqlite3.connect(':memory:').execute('select 6*7').fetchone())
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        print(sum(pool.map(square, range(1000))))
    sys.stdout.flush()
    child = os.fork()
    if child == 0:
        os.closerange(3, 4096)
        os.execvp('sh', ['sh', '-c', 'echo execed; kill -9 $$'])
    print(os.waitpid(child, 0)[1], ctypes.CDLL(None).abs(-6))
    os.posix_spawnp('true', ['true'], os.environ)
    os.wait()
    signal.raise_signal(signal.SIGTERM)
";

const NODE: &str = r"
const { execFileSync, spawnSync } = require('child_process');
const { Worker } = require('worker_threads');
console.log(String(execFileSync('echo', ['child'])), spawnSync('sh', ['-c', 'exit 3']).status);
new Worker('console.log(6 * 7); process.exit(5)', { eval: true })
    .on('exit', code => { console.log(code); process.exit(4); });
";

const THREADS: &str = r#"
#include <pthread.h>
#include <stdio.h>
#include <unistd.h>
static __thread int own;
static void *run(void *sum) { for (int i = 0; i < 1000; i++) own++; __sync_fetch_and_add((int *)sum, own); return 0; }
int main(void)
{
    pthread_t ids[64];
    int sum = 0;
    for (int i = 0; i < 64; i++) pthread_create(&ids[i], 0, run, &sum);
    for (int i = 0; i < 64; i++) pthread_join(ids[i], 0);
    printf("%d\n", sum);
    fflush(stdout);
    if (!vfork()) _exit(0);
    return 9;
}
"#;

const JAVA: &str = r#"
public class Main {
    public static void main(String[] a) throws Exception {
        System.out.println(new ProcessBuilder("sh", "-c", "exit 3").start().waitFor());
        Thread t = new Thread(() -> System.out.println(6 * 7));
        t.start();
        t.join();
        System.exit(4);
    }
}
"#;

fn job(script: &str) -> Job {
    let job = Job::new("bash").args(["-c", script]);
    let job = job.without("LD_LIBRARY_PATH").without("VRAMSHIM_DIR");
    let files = [
        ("hello.c", HELLO),
        ("processes.py", PYTHON),
        ("processes.js", NODE),
        ("threads.c", THREADS),
        ("Main.java", JAVA),
    ];
    for (name, text) in files {
        std::fs::write(job.folder().join(name), text).expect("a file");
    }
    job
}

/// What a program did, and the files that are there then. Its folder has another name in each run.
fn outcome(finished: &Finished) -> [String; 4] {
    let folder = finished.folder.path().display().to_string();
    let plain = |text: &str| without_process_ids(&text.replace(&folder, "FOLDER"));
    let files = files(finished.folder.path()).join("\n");
    let (stdout, stderr) = (plain(&finished.stdout), plain(&finished.stderr));
    [finished.status.to_string(), stdout, stderr, files]
}

/// The text without the lines in which bash tells the process id of a child that a signal ended.
fn without_process_ids(text: &str) -> String {
    let tells = |line: &str| ["Killed", "limit exceeded"].iter().any(|what| line.contains(what));
    let stays = |line: &&str| !line.starts_with("bash: line 1:") || !tells(line);
    text.lines().filter(stays).map(|line| format!("{line}\n")).collect()
}

#[test]
fn foreign_programs_run_as_without_the_library() {
    let flags = ["-shared", "-fPIC", &dlsym_version()];
    let layer = client("support/clients/dlsym_layer.c", "foreign-layer.so", &flags);
    let mut differences = Vec::new();
    for row in PROGRAMS {
        let (needed, script) = row.split_once(" => ").expect("a script");
        if let Some(missing) = needed.split(' ').find(|name| !in_path(name)) {
            left_out(&format!("{missing} is not installed"));
            continue;
        }
        let alone = outcome(&job(script).alone().run());
        let with = || job(script).env("VRAMSHIM_STRATEGY", "auto_growth");
        let runs = [
            ("the library", with().run()),
            ("the library before another", with().preload(layer.clone()).run()),
            (
                "the library after another",
                with().preload_in_front(layer.clone()).run(),
            ),
        ];
        for (what, run) in runs {
            let found = outcome(&run);
            if found != alone {
                differences.push(format!("{needed} with {what}: {found:#?}\nalone: {alone:#?}"));
            }
        }
    }
    assert!(differences.is_empty(), "{}", differences.join("\n"));
}
