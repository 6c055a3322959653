//! The front door against a scripted router.

mod clients;
mod failures;
mod harness;
mod healthy;
mod limits;
mod keys;
mod openapi;
mod oversize;
mod refusals;
