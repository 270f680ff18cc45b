//! The places in a record that hold the fields of events. `records!` makes encoder and decoder from one table of them.

use base::api::ClassCode;
use base::shortage::{Guard, MemInfo, Refuser};

use super::{RawRecord, ShortName};

/// Bits of a word of a record.
#[derive(Clone, Copy)]
pub(super) struct Place {
    word: usize,
    shift: u32,
    bits: u32,
}

pub(super) const TIME: Place = Place::at(0, 0, 64);
pub(super) const ADDRESS: Place = Place::at(1, 0, 64);
pub(super) const SIZE: Place = Place::at(2, 0, 64);
pub(super) const ALLOCATED: Place = Place::at(3, 0, 64);
pub(super) const DETAIL: Place = Place::at(4, 0, 64);
pub(super) const THREAD: Place = Place::at(5, 0, 32);
/// The number of the stack; 0 stands for none. In the record of a process it is the process's pid on the host.
pub(super) const STACK: Place = Place::at(5, 32, 32);
pub(super) const API: Place = Place::at(6, 0, 16);
pub(super) const DEVICE: Place = Place::at(6, 16, 16);
pub(super) const KIND: Place = Place::at(6, 32, 8);
pub(super) const CLASS: Place = Place::at(6, 40, 8);
pub(super) const FLAGS: Place = Place::at(6, 48, 8);
pub(super) const STREAM: Place = Place::at(6, 56, 8);

pub(super) const fn flag(bit: u32) -> Place {
    FLAGS.part(bit, 1)
}

impl Place {
    const fn at(word: usize, shift: u32, bits: u32) -> Place {
        Place { word, shift, bits }
    }

    /// Some of the bits.
    pub(super) const fn part(self, shift: u32, bits: u32) -> Place {
        Place::at(self.word, self.shift + shift, bits)
    }

    #[inline(always)]
    pub(super) fn get(self, raw: &RawRecord) -> u64 {
        raw.0[self.word] >> self.shift & (u64::MAX >> (64 - self.bits))
    }

    /// Sets the bits, which are 0.
    #[inline(always)]
    pub(super) fn set(self, raw: &mut RawRecord, bits: u64) {
        raw.0[self.word] |= bits << self.shift;
    }

    #[inline(always)]
    pub(super) fn replace(self, raw: &mut RawRecord, bits: u64) {
        raw.0[self.word] &= !(u64::MAX >> (64 - self.bits) << self.shift);
        self.set(raw, bits);
    }
}

/// A value as bits of a record. Any bits are a value.
pub(crate) trait Bits {
    fn bits(self) -> u64;
    fn of_bits(bits: u64) -> Self;
}

macro_rules! numbers {
    ($($type:ident $unsigned:ident)*) => {$(
        impl Bits for $type {
            #[inline(always)]
            fn bits(self) -> u64 {
                u64::from(self as $unsigned)
            }

            #[inline(always)]
            fn of_bits(bits: u64) -> $type {
                bits as $type
            }
        }
    )*};
}

numbers! { u64 u64 u32 u32 u16 u16 u8 u8 i32 u32 i16 u16 }

impl Bits for bool {
    #[inline(always)]
    fn bits(self) -> u64 {
        self.into()
    }

    #[inline(always)]
    fn of_bits(bits: u64) -> bool {
        bits == 1
    }
}

impl Bits for ClassCode {
    #[inline(always)]
    fn bits(self) -> u64 {
        self.number().into()
    }

    #[inline(always)]
    fn of_bits(bits: u64) -> ClassCode {
        ClassCode::from(bits as u8)
    }
}

impl Bits for Refuser {
    fn bits(self) -> u64 {
        self as u64
    }

    fn of_bits(bits: u64) -> Refuser {
        let known = Refuser::ALL.iter().find(|refuser| refuser.bits() == bits);
        known.copied().unwrap_or(Refuser::Driver)
    }
}

/// A value that is stored at `P`: one place, or one for each part of the value.
pub(super) trait Field<P> {
    fn put(self, raw: &mut RawRecord, place: P);
    fn take(raw: &RawRecord, place: P) -> Self;
}

impl<T: Bits> Field<Place> for T {
    #[inline(always)]
    fn put(self, raw: &mut RawRecord, place: Place) {
        place.set(raw, self.bits());
    }

    #[inline(always)]
    fn take(raw: &RawRecord, place: Place) -> T {
        T::of_bits(place.get(raw))
    }
}

/// The place of an optional value: the first is 1 if there is a value, and 0 if there is none.
pub(super) struct Known<P>(pub(super) Place, pub(super) P);

impl<P, T: Field<P>> Field<Known<P>> for Option<T> {
    #[inline(always)]
    fn put(self, raw: &mut RawRecord, Known(known, place): Known<P>) {
        known.set(raw, self.is_some().into());
        if let Some(value) = self {
            value.put(raw, place);
        }
    }

    #[inline(always)]
    fn take(raw: &RawRecord, Known(known, place): Known<P>) -> Option<T> {
        (known.get(raw) != 0).then(|| T::take(raw, place))
    }
}

/// The place of an optional value, a part of which is never 0.
pub(super) struct UnlessZero<P>(pub(super) Place, pub(super) P);

impl<P, T: Field<P>> Field<UnlessZero<P>> for Option<T> {
    #[inline(always)]
    fn put(self, raw: &mut RawRecord, UnlessZero(_, place): UnlessZero<P>) {
        if let Some(value) = self {
            value.put(raw, place);
        }
    }

    #[inline(always)]
    fn take(raw: &RawRecord, UnlessZero(part, place): UnlessZero<P>) -> Option<T> {
        (part.get(raw) != 0).then(|| T::take(raw, place))
    }
}

/// A value in several places.
pub(super) trait Parts<const N: usize> {
    fn parts(self) -> [u64; N];
    fn of_parts(parts: [u64; N]) -> Self;
}

impl<const N: usize, T: Parts<N>> Field<[Place; N]> for T {
    #[inline(always)]
    fn put(self, raw: &mut RawRecord, places: [Place; N]) {
        for (place, part) in places.into_iter().zip(self.parts()) {
            place.set(raw, part);
        }
    }

    #[inline(always)]
    fn take(raw: &RawRecord, places: [Place; N]) -> T {
        T::of_parts(places.map(|place| place.get(raw)))
    }
}

impl Parts<2> for (u64, u64) {
    fn parts(self) -> [u64; 2] {
        self.into()
    }

    fn of_parts(parts: [u64; 2]) -> Self {
        parts.into()
    }
}

/// The parts of a struct are its fields.
macro_rules! fields {
    ($($type:ident $count:literal { $($field:ident),* })*) => {$(
        impl Parts<$count> for $type {
            #[inline(always)]
            fn parts(self) -> [u64; $count] {
                [$(self.$field.bits()),*]
            }

            fn of_parts([$($field),*]: [u64; $count]) -> $type {
                $type { $($field: Bits::of_bits($field)),* }
            }
        }
    )*};
}

fields! {
    MemInfo 2 { total, free }
    Guard 2 { bytes, of_device }
}

impl Parts<2> for ShortName {
    fn parts(self) -> [u64; 2] {
        let both = u128::from_le_bytes(self.0);
        [both as u64, (both >> 64) as u64]
    }

    fn of_parts([low, high]: [u64; 2]) -> ShortName {
        ShortName((u128::from(low) | u128::from(high) << 64).to_le_bytes())
    }
}

/// Makes the kinds of records, encoder and decoder from a table: of each kind its number, the variant of `Event`, the
/// struct in it if there is one, and each field with its place, or that of the whole value. `also` sets fields of the
/// record that are not the event's.
macro_rules! records {
    ($(
        $kind:ident $number:literal $variant:ident
        $($inner:ident)? $({ $($field:ident: $place:expr),* $(,)? })? $(($whole:ident: $whole_place:expr))?
        $(also $also:ident)?;
    )*) => {
        $(const $kind: u8 = $number;)*

        impl Event {
            #[inline(always)]
            fn put_fields(self, raw: &mut RawRecord) {
                match self {
                    $(records!(@event $variant $($inner)? $({ $($field),* })? $(($whole))?) => {
                        $kind.put(raw, KIND);
                        $($(Field::put($field, raw, $place);)*)?
                        $(Field::put($whole, raw, $whole_place);)?
                        $($also(raw);)?
                    })*
                    Event::Unknown { kind } => kind.put(raw, KIND),
                }
            }

            /// `None` if the kind is not in the table.
            #[inline(always)]
            fn take_fields(raw: &RawRecord, kind: u8) -> Option<Event> {
                Some(match kind {
                    $($kind => {
                        $($(let $field = Field::take(raw, $place);)*)?
                        $(let $whole = Field::take(raw, $whole_place);)?
                        records!(@event $variant $($inner)? $({ $($field),* })? $(($whole))?)
                    })*
                    _ => return None,
                })
            }
        }
    };
    (@event $variant:ident { $($field:ident),* }) => { Event::$variant { $($field),* } };
    (@event $variant:ident ($whole:ident)) => { Event::$variant($whole) };
    (@event $variant:ident $inner:ident { $($field:ident),* }) => { Event::$variant($inner { $($field),* }) };
}
pub(super) use records;
