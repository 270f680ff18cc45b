//! Sends the metrics to a receiver of OpenTelemetry, by OTLP over HTTP.
//!
//! `receiver` is where they go, `request` makes the message from the metrics, `messages` declares it, `client` posts it, and
//! `push` does this again and again.

mod client;
pub mod messages;
mod push;
mod receiver;
mod request;

pub use push::start;
pub use receiver::Receiver;
