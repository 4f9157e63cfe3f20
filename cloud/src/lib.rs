//! baton-cloud.
