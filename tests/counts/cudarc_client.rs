//! A client in Rust that uses cudarc's safe API. It allocates on two devices and copies bytes to the device and back.
//! At every checkpoint the client prints its own count beside the simulator's table and the library's ledger.
//!
//! A second process of the tests runs it under the library. So the tests must not depend on the library's crate, which would
//! link the hooks into the client itself.

use std::collections::BTreeMap;
use std::ffi::{CStr, c_char, c_void};

use cudarc::driver::{CudaContext, CudaSlice, PinnedHostSlice, result};

type Tell = unsafe extern "C" fn(*mut c_char, usize) -> usize;

/// The JSON that the function of this name returns, or `null` if no library in this process exports it.
fn told(name: &CStr) -> String {
    // SAFETY: both functions have the signature of `Tell` (shim.h, cuda_api.h) and write at most as many bytes as their
    // second argument says.
    unsafe {
        let mut function = libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr());
        if function.is_null() {
            let driver = libc::dlopen(c"libcuda.so.1".as_ptr(), libc::RTLD_NOW | libc::RTLD_NOLOAD);
            if !driver.is_null() {
                function = libc::dlsym(driver, name.as_ptr());
            }
        }
        if function.is_null() {
            return "null".to_owned();
        }
        let tell = std::mem::transmute::<*mut c_void, Tell>(function);
        let mut text = vec![0u8; 1 << 22];
        tell(text.as_mut_ptr().cast(), text.len());
        CStr::from_bytes_until_nul(&text)
            .expect("an end")
            .to_str()
            .expect("UTF-8")
            .to_owned()
    }
}

#[derive(Default)]
struct Own(BTreeMap<(i32, &'static str), usize>);

impl Own {
    fn add(&mut self, device: i32, class: &'static str, bytes: usize) {
        *self.0.entry((device, class)).or_default() += bytes;
    }

    fn subtract(&mut self, device: i32, class: &'static str, bytes: usize) {
        *self.0.entry((device, class)).or_default() -= bytes;
    }

    fn checkpoint(&self) {
        let rows: Vec<String> = self
            .0
            .iter()
            .map(|((device, class), bytes)| format!(r#"{{"device":{device},"class":"{class}","requested":{bytes}}}"#))
            .collect();
        let (account, truth) = (told(c"vramshim_account"), told(c"simgpu_truth"));
        println!(r#"{{"own":[{}],"account":{account},"truth":{truth}}}"#, rows.join(","));
    }
}

#[test]
#[ignore = "a client that another test starts"]
fn client() -> Result<(), Box<dyn std::error::Error>> {
    // What the test harness printed on this line is no line of JSON.
    println!();
    let mut own = Own::default();
    let mut slices: Vec<(i32, CudaSlice<f32>)> = Vec::new();
    let mut pinned: Vec<PinnedHostSlice<u8>> = Vec::new();
    let mut linear: Vec<(i32, u64, usize)> = Vec::new();
    let contexts = [CudaContext::new(0)?, CudaContext::new(1)?];
    own.checkpoint();
    for round in 1..=8usize {
        for (device, context) in (0..).zip(&contexts) {
            let stream = context.default_stream();
            let numbers: Vec<f32> = (0..round * 1000 + device as usize).map(|n| n as f32).collect();
            let slice = stream.clone_htod(&numbers)?;
            own.add(device, "async", numbers.len() * 4);
            if stream.clone_dtoh(&slice)? != numbers {
                return Err("the copied bytes differ".into());
            }
            slices.push((device, slice));
            slices.push((device, stream.alloc_zeros::<f32>(round * 333)?));
            own.add(device, "async", round * 333 * 4);
            context.bind_to_thread()?;
            // SAFETY: the address is freed once, below, and never read.
            let address = unsafe { result::malloc_sync(round * 100_000)? };
            linear.push((device, address, round * 100_000));
            own.add(device, "linear", round * 100_000);
            // SAFETY: the memory is not initialised and is never read.
            pinned.push(unsafe { context.alloc_pinned::<u8>(round * 5000)? });
            own.add(-1, "host", round * 5000);
        }
        own.checkpoint();
        if round % 2 == 0 {
            let (device, slice) = slices.swap_remove(round % slices.len());
            own.subtract(device, "async", slice.len() * 4);
            drop(slice);
            let (device, address, bytes) = linear.swap_remove(round % linear.len());
            own.subtract(device, "linear", bytes);
            contexts[0].bind_to_thread()?;
            // SAFETY: the address is from `malloc_sync`. It was just taken out of the list, so it is freed once.
            unsafe { result::free_sync(address)? };
            own.subtract(-1, "host", pinned.swap_remove(0).len());
            own.checkpoint();
        }
    }
    let mut held: Vec<String> = Vec::new();
    let mut hold = |api: &str, bytes: usize, device: i32| {
        held.push(format!(r#"{{"api":"{api}","size":{bytes},"device":{device}}}"#));
    };
    slices
        .iter()
        .for_each(|(device, slice)| hold("cuMemAllocAsync", slice.len() * 4, *device));
    linear
        .iter()
        .for_each(|(device, _, bytes)| hold("cuMemAlloc", *bytes, *device));
    pinned.iter().for_each(|slice| hold("cuMemHostAlloc", slice.len(), -1));
    println!(r#"{{"live":[{}]}}"#, held.join(","));
    own.checkpoint();
    // Nothing is freed here: the journal must show what a job still holds when it ends.
    std::mem::forget((slices, pinned, linear, contexts));
    Ok(())
}
