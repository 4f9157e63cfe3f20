//! What every route of this service has in common, whoever answers it: names of requests, true addresses, own pages only.
//!
//! | module | holds |
//! |---|---|
//! | [`own`] | pages of other sites are refused while nobody needs a key |
//! | [`proxies`] | whose word counts for the address of a request |
//! | [`request_id`] | one name for a request, from the edge to the end |
//!
//! Connections and their limits are `baton_edge`'s.

pub mod own;
pub mod proxies;
pub mod request_id;
