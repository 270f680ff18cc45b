//! A Rust client of the driver, through cudarc: allocates, moves real bytes, and prints what it counted beside the
//! simulator's truth and the library's account. It must not name the crate `vramshim`, which would link the hooks in.

use std::ffi::{CStr, c_char, c_void};

use cudarc::driver::{CudaContext, CudaSlice};

type Describe = unsafe extern "C" fn(*mut c_char, usize) -> usize;

/// What a function of this name, in the process or in the driver, has to say; `null` where there is none.
fn ask(name: &CStr) -> String {
    // SAFETY: look-ups of C strings; the function found has the signature that shim.h and cuda_api.h give it.
    unsafe {
        let mut found: *mut c_void = libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr());
        if found.is_null() {
            let driver = libc::dlopen(c"libcuda.so.1".as_ptr(), libc::RTLD_NOW | libc::RTLD_NOLOAD);
            found = libc::dlsym(driver, name.as_ptr());
        }
        if found.is_null() {
            return "null".to_owned();
        }
        let describe: Describe = std::mem::transmute(found);
        let mut buffer = vec![0u8; describe(std::ptr::null_mut(), 0) + 4096];
        describe(buffer.as_mut_ptr().cast(), buffer.len());
        CStr::from_bytes_until_nul(&buffer).unwrap().to_string_lossy().into_owned()
    }
}

fn checkpoint(held: &[(usize, usize)]) {
    let mut own = Vec::new();
    for device in 0..2 {
        let bytes: usize = held.iter().filter(|(on, _)| *on == device).map(|(_, bytes)| bytes).sum();
        // cudarc allocates on a stream where the device has memory pools.
        own.push(format!("{{\"device\":{device},\"class\":\"async\",\"requested\":{bytes}}}"));
    }
    let (account, truth) = (ask(c"vramshim_account"), ask(c"simgpu_truth"));
    println!("{{\"own\":[{}],\"account\":{account},\"truth\":{truth}}}", own.join(","));
}

fn main() {
    let mut held = Vec::new();
    let mut slices: Vec<(CudaSlice<f32>, Vec<f32>)> = Vec::new();
    let contexts = [CudaContext::new(0).unwrap(), CudaContext::new(1).unwrap()];
    for number in 0..10usize {
        let data: Vec<f32> = (0..1000 * (number + 1)).map(|value| value as f32).collect();
        let stream = contexts[number % 2].default_stream();
        slices.push((stream.clone_htod(&data).unwrap(), data.clone()));
        held.push((number % 2, data.len() * 4));
    }
    checkpoint(&held);
    for (number, (slice, data)) in slices.iter().enumerate() {
        let back = contexts[number % 2].default_stream().clone_dtoh(slice).unwrap();
        assert_eq!(&back, data, "bytes changed on the way");
    }
    slices.truncate(4);
    held.truncate(4);
    for context in &contexts {
        context.default_stream().synchronize().unwrap();
    }
    checkpoint(&held);
    drop(slices);
    for context in &contexts {
        context.default_stream().synchronize().unwrap();
    }
    checkpoint(&[]);
}
