//! A call of Abort.

use innkeeper_proto::v1;

use super::{WireError, wrong};

/// Longest id of a request, in bytes: it is kept with every tombstone and sent with every room.
pub(super) const LONGEST_RID: usize = 256;

/// The client's id of the request that is to be aborted.
///
/// # Errors
/// [`WireError::Wrong`] if there is none, or it is longer than any request's can be.
pub fn rid_to_abort(message: v1::AbortRequest) -> Result<String, WireError> {
    let v1::AbortRequest { rid } = message;
    if rid.is_empty() || rid.len() > LONGEST_RID {
        return Err(wrong("rid", rid, "the request's x-request-id: 1 to 256 bytes"));
    }
    Ok(rid)
}
