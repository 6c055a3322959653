//! The front door against a scripted router.

mod clients;
mod failures;
mod folder;
mod harness;
mod healthy;
mod keys;
mod limits;
mod openapi;
mod oversize;
mod refusals;
