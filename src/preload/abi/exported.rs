//! How a function is exported.

/// Exports functions. Each binds the library before its own code runs, because that code may use any reference of the library
/// (`next/bind`). The code is in a function of its own, so that the compiler moves nothing of it to the front.
///
/// Functions without `unsafe` are exported in a call of their own.
macro_rules! exported {
    ($(
        $(#[$attribute:meta])*
        pub unsafe extern "C" fn $name:ident($($argument:ident: $type:ty),* $(,)?) $(-> $result:ty)? $body:block
    )+) => {$(
        $(#[$attribute])*
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name($($argument: $type),*) $(-> $result)? {
            #[inline(never)]
            unsafe extern "C" fn inside($($argument: $type),*) $(-> $result)? $body
            $crate::next::bind::bind();
            // SAFETY: the caller's own arguments, under the same contract.
            unsafe { inside($($argument),*) }
        }
    )+};
    ($(
        $(#[$attribute:meta])*
        pub extern "C" fn $name:ident($($argument:ident: $type:ty),* $(,)?) $(-> $result:ty)? $body:block
    )+) => {$(
        $(#[$attribute])*
        #[unsafe(no_mangle)]
        pub extern "C" fn $name($($argument: $type),*) $(-> $result)? {
            #[inline(never)]
            extern "C" fn inside($($argument: $type),*) $(-> $result)? $body
            $crate::next::bind::bind();
            inside($($argument),*)
        }
    )+};
}
pub(super) use exported;
