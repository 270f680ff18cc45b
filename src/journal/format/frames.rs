//! The frames of stacks, and which of them are the job's own. One rule names a stack in the library's messages, in all
//! views and in the report.

use std::sync::Arc;

/// One entry of a stack. Many frames share the texts.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Frame {
    pub file: Arc<str>,
    /// 0 if it is not known.
    pub line: u64,
    pub function: Arc<str>,
}

/// The endings of source files of compiled languages.
const COMPILED: [&str; 21] = [
    "c", "cc", "cpp", "cxx", "cu", "cuh", "h", "hh", "hpp", "hxx", "inc", "inl", "ipp", "tcc", "rs", "go", "f", "f90",
    "pyx", "pxd", "s",
];

/// Functions of PyTorch's unwinder, allocator and operators, of bindings and of the interpreter. PyTorch's own snapshot
/// has them in its stacks with the file `??`, so the file does not tell.
const FOREIGN_FUNCTIONS: [&str; 15] = [
    "torch::",
    "c10::",
    "at::",
    "pybind11::",
    "std::",
    "__gnu_cxx::",
    "_Py",
    "Py_",
    "PyEval_",
    "PyObject_",
    "PyRun_",
    "THP",
    "ffi_call",
    "__libc_start",
    "_start",
];

impl Frame {
    pub fn new(file: impl Into<Arc<str>>, line: u64, function: impl Into<Arc<str>>) -> Frame {
        let (file, function) = (file.into(), function.into());
        Frame { file, line, function }
    }

    fn file_name(&self) -> &str {
        self.file.rsplit('/').next().unwrap_or_default()
    }

    fn is_of_shared_library(&self) -> bool {
        let name = self.file_name();
        name.ends_with(".so") || name.contains(".so.")
    }

    /// Whether the frame is one of Python. Those have a line always, and scripts may have any name.
    fn is_python(&self) -> bool {
        let ending = self.file_name().rsplit_once('.').map_or("", |(_, ending)| ending);
        let is_source = !matches!(&*self.file, "" | "??") && !COMPILED.contains(&ending.to_ascii_lowercase().as_str());
        self.line > 0 && is_source && !self.is_of_shared_library()
    }

    /// Whether the frame is in an installed package, inside Python, in a shared library whose source is not known, or a
    /// function of what lies between the job and its memory.
    fn is_foreign(&self) -> bool {
        let file = &*self.file;
        let is_installed =
            file.contains("-packages/") || file.starts_with('<') || file.contains("/lib/python3") || file == "??";
        is_installed || self.is_of_shared_library() || !self.is_python() && self.is_between()
    }

    /// Whether the native frame is of code that every request goes through, and so does not tell who asked: CPython, by the
    /// folders of its source or its program; CUDA's libraries; and common functions such as those of libffi.
    fn is_between(&self) -> bool {
        const FOLDERS: [&str; 5] = ["Objects", "Python", "Modules", "Programs", "_ctypes"];
        const FILES: [&str; 5] = ["libcuda.so", "libcudart.so", "libffi.so", "libc.so", "python3"];
        let folder = self.file.rsplit('/').nth(1).unwrap_or_default();
        FOLDERS.contains(&folder)
            || FILES.iter().any(|name| self.file_name().starts_with(name))
            || FOREIGN_FUNCTIONS.iter().any(|name| self.function.starts_with(name))
    }
}

/// The job's own frames of a stack, innermost first: those of Python if there are any, or else the native ones. If all
/// are foreign, the innermost one.
pub fn frames_of_the_job(stack: &[Frame]) -> impl Iterator<Item = &Frame> {
    let has_python = stack.iter().any(Frame::is_python);
    let candidates = move || stack.iter().filter(move |frame| frame.is_python() || !has_python);
    let has_own = candidates().any(|frame| !frame.is_foreign());
    let most = if has_own { usize::MAX } else { 1 };
    // Of foreign frames alone, those of the library that asked tell most.
    let has_asker = candidates().any(|frame| !frame.is_between());
    candidates()
        .filter(move |frame| !frame.is_foreign() || !(has_own || has_asker && frame.is_between()))
        .take(most)
}

/// The innermost of the job's own frames.
pub fn line_of_the_job(stack: &[Frame]) -> Option<&Frame> {
    frames_of_the_job(stack).next()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The functions of the job's own frames.
    fn own(stack: &[Frame]) -> Vec<&str> {
        frames_of_the_job(stack).map(|frame| &*frame.function).collect()
    }

    #[test]
    fn the_line_of_the_job_is_not_in_a_package() {
        let stack = [
            Frame::new("/x/lib/python3.11/site-packages/torch/nn/modules/module.py", 1, "call"),
            Frame::new("/home/me/model.py", 2, "forward"),
            Frame::new("/home/me/train.py", 3, "main"),
        ];
        assert_eq!(own(&stack), ["forward", "main"]);
        assert_eq!(own(&stack[..1]), ["call"]);
        assert!(own(&[]).is_empty());
    }

    #[test]
    fn the_line_of_python_comes_before_the_native_frames_that_it_called() {
        let stack = [
            Frame::new("/x/libcudart.so.12", 0, "cudaMalloc+0x14"),
            Frame::new("/build/_ctypes/callproc.c", 923, "_call_function_pointer"),
            Frame::new("/home/me/helper.py", 11, "malloc"),
            Frame::new("/home/me/train", 3, "main"),
        ];
        assert_eq!(own(&stack), ["malloc", "main"]);
        // Without frames of Python nothing here is the job's.
        assert_eq!(line_of_the_job(&stack[..2]), Some(&stack[0]));
    }

    #[test]
    fn profilers_unwinders_and_allocators_name_no_stack() {
        let stack = [
            Frame::new("??", 0, "torch::unwind::unwind()"),
            Frame::new("", 0, "c10::cuda::CUDACachingAllocator::Native::malloc(void**)"),
            Frame::new("RegisterCUDA_0.cpp", 0, "at::(anonymous namespace)::wrapper_empty()"),
            Frame::new("train.cpp", 30, "load_weights()"),
            Frame::new("train.cpp", 60, "main"),
        ];
        assert_eq!(line_of_the_job(&stack).unwrap().line, 30);
        let with_python = [&stack[..3], &[Frame::new("/home/me/train.py", 7, "step")]].concat();
        assert_eq!(line_of_the_job(&with_python).unwrap().line, 7);
    }

    #[test]
    fn no_stack_is_called_by_the_interpreter() {
        let stack = [
            Frame::new("/x/libcudart.so.12", 0, "cudaMalloc"),
            Frame::new("/x/numba_like.so", 0, "reserve"),
            Frame::new("/build/python3.11/Objects/methodobject.c", 543, "cfunction_call"),
            Frame::new("/build/python3.11/Python/ceval.c", 4770, "trace_eval"),
            Frame::new("/usr/bin/python3.11", 0, "main"),
        ];
        assert_eq!(line_of_the_job(&stack), Some(&stack[1]));
    }
}
