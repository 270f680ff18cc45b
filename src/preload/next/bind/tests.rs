//! What `bind` would do, compared with what the loader has done in this test program.

use super::marks::{self, Reference};
use super::own::Own;
use super::scope::Scope;
use super::wanted::{Version, Wanted};

/// The symbols that the loader has bound in this program, with the addresses.
fn bound_by_loader(own: &Own) -> Vec<(usize, usize)> {
    let symbols = own
        .references_of_loader()
        .iter()
        .filter_map(|rela| match marks::reference(rela.info) {
            Some(Reference::Symbol(index)) => Some((index, rela.offset)),
            _ => None,
        });
    symbols
        .map(|(index, offset)| {
            // SAFETY: the loader has bound the word, and nothing writes to it now.
            (index, unsafe { *(own.at(offset as usize) as *const usize) })
        })
        .collect()
}

#[test]
fn finds_what_the_loader_found() {
    let own = Own::find();
    let bound = bound_by_loader(&own);
    let functions = bound.iter().filter(|(_, address)| *address != 0).count();
    assert!(functions > 50, "{functions} functions are bound by the loader");
    Scope::with(&own, |scope| {
        for &(index, address) in &bound {
            let wanted = own.wanted(index);
            let found = scope.find(&wanted);
            let (name, version) = (wanted.name, wanted.version_name());
            assert_eq!(found.unwrap_or(0), address, "{name:?} {version:?}");
            assert!(address != 0 || own.is_weak(index), "{name:?} is not weak");
        }
    });
}

#[test]
fn a_version_is_matched_whole() {
    let own = Own::find();
    Scope::with(&own, |scope| {
        let any = |name| scope.find(&Wanted::any_version(name));
        assert_eq!(any(c"getpid"), Some(libc::getpid as *const () as usize));
        assert_eq!(any(c"no function has this name"), None);
        let of = |name, hash| scope.find(&Wanted::new(c"getpid", Some(Version { name, hash })));
        // The hash of a version is that of `DT_HASH`.
        let hash = crate::next::elf::system_v_hash;
        assert_eq!(of(c"GLIBC_2.2.5", hash(c"GLIBC_2.2.5")), any(c"getpid"));
        assert_eq!(of(c"GLIBC_2.3", hash(c"GLIBC_2.3")), None);
    });
}

#[test]
fn a_library_that_the_loader_bound_has_no_references_left() {
    let own = Own::find();
    assert!(own.references().is_empty() && own.constant_data().is_none());
    assert!(super::function_behind_ours(c"getpid").is_none());
    super::bind();
}
