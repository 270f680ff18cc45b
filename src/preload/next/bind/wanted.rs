//! What a reference asks for: a name, and a version of it.

use std::ffi::CStr;

use crate::next::elf::gnu_hash;

pub struct Version<'a> {
    pub name: &'a CStr,
    /// Of this name, as in `DT_HASH`.
    pub hash: u32,
}

/// What a reference refers to.
pub struct Wanted<'a> {
    pub name: &'a CStr,
    pub version: Option<Version<'a>>,
    /// Of the name, as in `DT_GNU_HASH`.
    pub hash: u32,
}

impl<'a> Wanted<'a> {
    pub fn new(name: &'a CStr, version: Option<Version<'a>>) -> Self {
        Wanted {
            name,
            version,
            hash: gnu_hash(name),
        }
    }

    #[cfg(test)]
    pub fn version_name(&self) -> Option<&CStr> {
        self.version.as_ref().map(|version| version.name)
    }

    /// The default version.
    pub fn any_version(name: &'a CStr) -> Self {
        Wanted::new(name, None)
    }
}
