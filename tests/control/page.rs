//! The program of docs/control.md and examples/watch.py run as the page says.

use support::{AUTO_GROWTH, Job, assert_says};

/// A job whose memory rises, falls and stays reserved. The peak and the end last long enough to be sampled on a busy machine.
const TRAIN: &str = r#"
import ctypes, time
cuda = ctypes.CDLL("libcuda.so.1")
context = ctypes.c_void_p()
assert cuda.cuInit(0) == 0 and cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == 0
assert cuda.cuCtxSetCurrent(context) == 0
held = []
for mib in (64, 128, 256):
    address = ctypes.c_uint64()
    assert cuda.cuMemAlloc_v2(ctypes.byref(address), ctypes.c_size_t(mib << 20)) == 0
    held.append(address)
    time.sleep(2 if mib == 256 else 0.2)
while held:
    assert cuda.cuMemFree_v2(held.pop()) == 0
    time.sleep(0.2 if held else 2)
"#;

/// The first program of the page.
fn program() -> String {
    let page = std::fs::read_to_string(support::root().join("docs/control.md")).expect("the page");
    let programs = page.split("```python\n").skip(1);
    let mut programs = programs.map(|rest| rest.split("```").next().unwrap_or_default());
    programs.next().expect("the program").to_owned()
}

/// The example of the package, after a first use of CUDA.
#[test]
fn the_example_of_the_page_runs() {
    let begin = "import ctypes\ncuda, context = ctypes.CDLL('libcuda.so.1'), ctypes.c_void_p()\n\
                 assert cuda.cuInit(0) == cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == 0\n\
                 assert cuda.cuCtxSetCurrent(context) == cuda.cuMemFree_v2(0) == 0\n";
    let job = Job::new("python3").args(["example.py"]).strategy(AUTO_GROWTH);
    std::fs::write(job.folder().join("example.py"), begin.to_owned() + &program()).unwrap();
    let finished = job.env("PYTHONPATH", support::root().join("src/python")).run().ok();
    assert!(finished.stdout.contains("bytes given back"), "{}", finished.stdout);
    assert!(finished.folder.path().join("now.vraj").is_file());
}

#[test]
fn the_investigation_of_the_page_finds_memory_that_is_mapped_and_not_allocated() {
    let code = std::fs::read_to_string(support::root().join("examples/watch.py")).unwrap();
    let job = Job::new("python3").args(["watch.py", "train.py"]).strategy(AUTO_GROWTH);
    std::fs::write(job.folder().join("watch.py"), code).unwrap();
    std::fs::write(job.folder().join("train.py"), TRAIN).unwrap();
    let finished = job.run().ok();
    let found = "at most 448 MiB allocated, 448 MiB mapped, 448 MiB mapped and not allocated";
    assert_says(&finished.stdout, found);
    let picture = std::fs::read_to_string(finished.folder.path().join("memory.svg")).expect("the plot");
    assert!(picture.starts_with("<svg"), "{picture}");
    assert_eq!(picture.matches("<polyline").count(), 2, "{picture}");
}
