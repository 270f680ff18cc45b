//! The places in a record that hold the fields of events. `records!` makes encoder and decoder from one table of them.

use base::api::ClassCode;
use base::shortage::{Guard, MemInfo, Refuser};

use super::{Amount, Heap, RawRecord, ShortName};

/// Bits of one field of a record.
#[derive(Clone, Copy)]
pub(super) struct Place {
    of: Of,
    shift: u32,
    bits: u32,
}

#[derive(Clone, Copy)]
enum Of {
    Address,
    Size,
    Allocated,
    Detail,
    Stack,
    Class,
    Flags,
}

pub(super) const ADDRESS: Place = Place::whole(Of::Address, 64);
pub(super) const SIZE: Place = Place::whole(Of::Size, 64);
pub(super) const ALLOCATED: Place = Place::whole(Of::Allocated, 64);
pub(super) const DETAIL: Place = Place::whole(Of::Detail, 64);
pub(super) const STACK: Place = Place::whole(Of::Stack, 32);
pub(super) const CLASS: Place = Place::whole(Of::Class, 8);
pub(super) const FLAGS: Place = Place::whole(Of::Flags, 8);

/// One bit of the flags.
pub(super) const fn flag(bit: u32) -> Place {
    FLAGS.part(bit, 1)
}

impl Place {
    const fn whole(of: Of, bits: u32) -> Place {
        Place { of, shift: 0, bits }
    }

    pub(super) const fn part(self, shift: u32, bits: u32) -> Place {
        Place { shift, bits, ..self }
    }

    #[inline(always)]
    fn get(self, raw: &RawRecord) -> u64 {
        let field = match self.of {
            Of::Address => raw.address,
            Of::Size => raw.size,
            Of::Allocated => raw.allocated,
            Of::Detail => raw.detail,
            Of::Stack => raw.stack.into(),
            Of::Class => raw.class.into(),
            Of::Flags => raw.flags.into(),
        };
        field >> self.shift & (u64::MAX >> (64 - self.bits))
    }

    /// Sets the bits, which are 0.
    #[inline(always)]
    fn set(self, raw: &mut RawRecord, bits: u64) {
        let bits = bits << self.shift;
        match self.of {
            Of::Address => raw.address |= bits,
            Of::Size => raw.size |= bits,
            Of::Allocated => raw.allocated |= bits,
            Of::Detail => raw.detail |= bits,
            Of::Stack => raw.stack |= bits as u32,
            Of::Class => raw.class |= bits as u8,
            Of::Flags => raw.flags |= bits as u8,
        }
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

numbers! { u64 u64 u32 u32 u16 u16 u8 u8 i32 u32 }

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
        match bits {
            1 => Refuser::Layer,
            2 => Refuser::LayerInFront,
            _ => Refuser::Driver,
        }
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

impl Parts<2> for MemInfo {
    #[inline(always)]
    fn parts(self) -> [u64; 2] {
        [self.total, self.free]
    }

    fn of_parts([total, free]: [u64; 2]) -> MemInfo {
        MemInfo { total, free }
    }
}

impl Parts<2> for Guard {
    #[inline(always)]
    fn parts(self) -> [u64; 2] {
        [self.bytes, self.of_device.into()]
    }

    fn of_parts([bytes, of_device]: [u64; 2]) -> Guard {
        let of_device = of_device == 1;
        Guard { bytes, of_device }
    }
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

impl Parts<2> for Amount {
    fn parts(self) -> [u64; 2] {
        match self {
            Amount::NotKnown(reason) => [0, reason.bits()],
            Amount::Exact(bytes) => [1, bytes],
            Amount::AtLeast(bytes) => [2, bytes],
            Amount::AtMost(bytes) => [3, bytes],
        }
    }

    fn of_parts([quality, bytes]: [u64; 2]) -> Amount {
        match quality {
            1 => Amount::Exact(bytes),
            2 => Amount::AtLeast(bytes),
            3 => Amount::AtMost(bytes),
            _ => Amount::NotKnown(Bits::of_bits(bytes)),
        }
    }
}

impl Parts<3> for Heap {
    fn parts(self) -> [u64; 3] {
        [self.allocator.bits(), self.allocated, self.mapped]
    }

    fn of_parts([allocator, allocated, mapped]: [u64; 3]) -> Heap {
        Heap {
            allocator: Bits::of_bits(allocator),
            allocated,
            mapped,
        }
    }
}

/// Makes the kinds of records, encoder and decoder from a table: of each kind its number, the variant of `Event`, the struct
/// in it if there is one, and each field with its place. `also` sets fields of the record that are not the event's.
macro_rules! records {
    ($(
        $kind:ident $number:literal $variant:ident $($inner:ident)? { $($field:ident: $place:expr),* $(,)? }
        $(also $also:ident)?;
    )*) => {
        $(const $kind: u8 = $number;)*

        impl Event {
            #[inline(always)]
            fn put_fields(self, raw: &mut RawRecord) {
                match self {
                    $(records!(@event $variant $($inner)? { $($field),* }) => {
                        raw.kind = $kind;
                        $(Field::put($field, raw, $place);)*
                        $($also(raw);)?
                    })*
                    Event::Alloc(_) | Event::Free { .. } | Event::Unknown { .. } => {}
                }
            }

            /// `None` if the kind is not in the table.
            #[inline(always)]
            fn take_fields(raw: &RawRecord) -> Option<Event> {
                Some(match raw.kind {
                    $($kind => {
                        $(let $field = Field::take(raw, $place);)*
                        records!(@event $variant $($inner)? { $($field),* })
                    })*
                    _ => return None,
                })
            }
        }
    };
    (@event $variant:ident { $($field:ident),* }) => { Event::$variant { $($field),* } };
    (@event $variant:ident $inner:ident { $($field:ident),* }) => { Event::$variant($inner { $($field),* }) };
}
pub(super) use records;
