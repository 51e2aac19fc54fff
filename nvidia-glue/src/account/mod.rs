//! What a container holds of its cards: every client, object and reference, and the bytes charged for them.
//!
//! Pure: no I/O, no clock. Before an allocation is executed its bytes are reserved ([`Accounts::reserve`] in some form); after,
//! the size that the driver returned is what counts. Typed calls in, verdicts out; property-tested against a plain model.
