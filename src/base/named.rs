//! Enums whose variants have names: in JSON, in files, and in what people type.

/// Makes such an enum from a table of its variants and their names. If each name has a second text behind it, that is
/// what people read.
#[macro_export]
macro_rules! named {
    (
        $(#[$about:meta])*
        pub enum $name:ident { $($(#[$doc:meta])* $variant:ident $(= $number:expr)? => $text:literal,)+ }
    ) => {
        $(#[$about])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum $name { $($(#[$doc])* $variant $(= $number)?,)+ }

        impl $name {
            pub const ALL: &[$name] = &[$($name::$variant,)+];

            pub const fn name(self) -> &'static str {
                match self { $($name::$variant => $text,)+ }
            }

            pub fn parse(name: &str) -> Option<$name> {
                $name::ALL.iter().copied().find(|one| one.name() == name)
            }
        }
    };
    (
        $(#[$about:meta])*
        pub enum $name:ident {
            $($(#[$doc:meta])* $variant:ident $(= $number:expr)? => $text:literal, $words:literal;)+
        }
    ) => {
        $crate::named! {
            $(#[$about])*
            pub enum $name { $($(#[$doc])* $variant $(= $number)? => $text,)+ }
        }

        impl $name {
            pub const fn words(self) -> &'static str {
                match self { $($name::$variant => $words,)+ }
            }
        }
    };
}
