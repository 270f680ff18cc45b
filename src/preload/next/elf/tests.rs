//! Looks functions up in objects that every process has.

use std::ffi::c_void;

use super::object::our_address;
use super::*;

fn c_library() -> Object {
    find(|object| object.is_called(b"libc.so").then_some(*object)).expect("a C library")
}

#[test]
fn finds_what_the_linker_bound() {
    let address = c_library().function(c"getpid").expect("getpid");
    assert_eq!(address as usize, libc::getpid as *const () as usize);
    assert!(object_of(address).is_some_and(|object| object.is_called(b"libc.so")));
    assert!(c_library().exports(c"malloc") && !c_library().exports(c"mallo") && !c_library().exports(c"malloc_"));
}

#[test]
fn refuses_a_function_that_a_resolver_chooses() {
    // Every architecture's glibc picks one of these at load time.
    let chosen = [c"memcpy", c"strlen", c"gettimeofday"]
        .map(|name| (c_library().exports(name), c_library().function(name).is_none()));
    assert!(chosen.iter().all(|(exported, _)| *exported));
    assert!(cfg!(not(target_arch = "x86_64")) || chosen.iter().any(|(_, refused)| *refused));
}

#[test]
fn names_itself() {
    assert_eq!(c_library().soname(), Some(c"libc.so.6"));
    let ours = object_of(our_address() as *const c_void).expect("our object");
    assert!(ours.is_ours() && ours.needed().any(|name| name == c"libc.so.6"));
    let (low, high) = ours.span();
    assert!((low..high).contains(&our_address()));
    assert!(object_of(std::ptr::null()).is_none());
}

#[test]
fn both_ways_to_find_an_object_agree() {
    for address in [our_address(), libc::getpid as *const () as usize, 1] {
        let slow = find(|object| object.holds(address).then_some(*object));
        let quick = object_of(address as *const c_void);
        let facts = |object: Option<Object>| {
            object.map(|object| (object.base, object.count, object.position, object.span(), object.name))
        };
        assert_eq!(facts(slow), facts(quick));
    }
}

#[test]
fn every_object_can_be_read() {
    find(|object| {
        object.soname();
        object.needed().for_each(drop);
        assert!(!object.exports(c"no function has this name"));
        None::<()>
    });
}
