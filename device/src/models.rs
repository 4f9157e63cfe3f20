//! Model files of this device: pulls them from a hub, a package index or a path, and keeps them by name.
//!
//! [`pull`] gets a model, [`store`] keeps it. What always holds: a model of the store is whole, and its bytes
//! have the digest in its record. A download that was stopped, also by a power cut, goes on where it was. At
//! most [`CHUNK`] bytes are read again. Credentials go only to the server that they are for, and into no file
//! or message.

pub mod about;
mod choose;
mod error;
mod fetch;
mod fit;
mod http;
mod hub;
mod index;
mod lock;
mod part;
pub mod pull;
pub mod registry;
mod source;
pub mod store;
mod wheel;

pub use error::PullError;
pub(crate) use fit::free_bytes as disk_free_bytes;
pub(crate) use http::client as http_client;
pub use part::CHUNK;
pub use source::{HUB, HUB_ENV, INDEX, INDEX_ENV, Source, TOKEN_ENV};
pub(crate) use store::data_folder;
pub use store::{MODELS_DIR_ENV, Store, StoreError};

use baton_terminal::size;
