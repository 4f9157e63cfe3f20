//! Middleware for every route of this service: request ids, client addresses behind proxies, and protection
//! from other sites' pages.
//!
//! | module | holds |
//! |---|---|
//! | [`own`] | refuses pages of other sites while no key is needed |
//! | [`proxies`] | finds the client's address behind trusted proxies |
//! | [`request_id`] | gives a request one id in replies, logs and traces |
//!
//! Connections and their limits are in `baton_edge`.

pub mod own;
pub mod proxies;
pub mod request_id;
