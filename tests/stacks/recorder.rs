//! When the library starts what records PyTorch's tensors, in each Python, with a module in place of PyTorch.

use super::*;

const SCENES: &str = "
import ctypes, os, signal, sys, threading, time, types
driver = ctypes.CDLL('libcuda.so.1')
def begins():
    before, path = set(sys.modules), list(sys.path)
    driver.cuGetProcAddress(b'cuInit', ctypes.byref(ctypes.c_void_p()), 12000, ctypes.c_uint64(0))
    for _ in range(1000): pass
    assert sys.path == path
    return sorted(name for name in set(sys.modules) - before if name.startswith('vramshim'))
def raises(*_):
    raise TimeoutError
scene = sys.argv[1]
assert begins() == []
sys.modules['torch'] = types.ModuleType('torch')
if scene == 'raises':
    # The start waits, and the handler of a signal raises meanwhile.
    threading.main_thread = lambda: time.sleep(9)
    signal.signal(signal.SIGALRM, raises)
    signal.setitimer(signal.ITIMER_REAL, 0.2)
try:
    found = begins()
except TimeoutError:
    found = ['raised']
print(' '.join(found), begins())
";

fn begins(python: &Path, scene: &str, mode: &str) -> String {
    let job = Job::new(python).args(["-c", SCENES, scene]).env("VRAMSHIM_TORCH", mode);
    job.env("PYTHONDONTWRITEBYTECODE", "1").run().ok().stdout
}

/// It comes with PyTorch, and only once. What a handler of a signal raises meanwhile is the job's.
#[test]
fn what_records_tensors_starts_where_pytorch_is() {
    for python in pythons() {
        let all = "vramshim vramshim.installed vramshim.library vramshim.startup []\n";
        assert_eq!(begins(&python, "torch", ""), all, "{python:?}");
        assert_eq!(begins(&python, "torch", "off"), " []\n", "{python:?}");
        assert_eq!(begins(&python, "raises", ""), "raised []\n", "{python:?}");
    }
}
