//! What the library knows: types with methods that know no call.

pub mod captures;
pub mod frees_in_flight;
pub mod ledger;
pub mod limits;
pub mod measurements;
pub mod peers;
pub mod records;
