//! What etcd-client's errors mean to us.

use etcd_client::Error;

use crate::port::StoreError;

/// gRPC codes by number, because tonic is no dependency of this crate.
const ALREADY_EXISTS: i32 = 6;
const FAILED_PRECONDITION: i32 = 9;
const NOT_FOUND: i32 = 5;
const INVALID_ARGUMENT: i32 = 3;
const PERMISSION_DENIED: i32 = 7;
const OUT_OF_RANGE: i32 = 11;
const UNIMPLEMENTED: i32 = 12;
const UNAUTHENTICATED: i32 = 16;

/// Maps an error of etcd-client; whatever may pass by itself is `Unreachable`.
pub(super) fn map(error: &Error) -> StoreError {
    match error {
        Error::GRpcStatus(status) => map_status(status.code() as i32, status.message()),
        // `LeaseClient::keep_alive` says it so when the first answer has no time left.
        Error::LeaseKeepAliveError(text) if text.contains("not found") => StoreError::NotFound,
        Error::InvalidArgs(_) | Error::InvalidUri(_) | Error::InvalidMetadataValue(_) | Error::EndpointsNotManaged => {
            StoreError::Refused(error.to_string())
        }
        Error::IoError(_)
        | Error::TransportError(_)
        | Error::WatchError(_)
        | Error::Utf8Error(_)
        | Error::LeaseKeepAliveError(_)
        | Error::ElectError(_)
        | Error::EndpointError(_)
        | Error::Internal(_) => StoreError::Unreachable(error.to_string()),
    }
}

fn map_status(code: i32, message: &str) -> StoreError {
    match code {
        NOT_FOUND if message.contains("lease not found") => StoreError::NotFound,
        FAILED_PRECONDITION | ALREADY_EXISTS if message.contains("lease already exists") => StoreError::Exists,
        FAILED_PRECONDITION | ALREADY_EXISTS | NOT_FOUND | INVALID_ARGUMENT | PERMISSION_DENIED | OUT_OF_RANGE
        | UNIMPLEMENTED | UNAUTHENTICATED => StoreError::Refused(message.to_owned()),
        _ => StoreError::Unreachable(message.to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_two_normal_answers_are_recognised() {
        assert_eq!(
            map_status(5, "etcdserver: requested lease not found"),
            StoreError::NotFound
        );
        assert_eq!(map_status(9, "etcdserver: lease already exists"), StoreError::Exists);
        assert_eq!(
            map(&Error::LeaseKeepAliveError("lease not found".to_owned())),
            StoreError::NotFound
        );
    }

    #[test]
    fn what_may_pass_is_unreachable_and_what_may_not_is_refused() {
        assert!(matches!(
            map_status(14, "connection refused"),
            StoreError::Unreachable(_)
        ));
        assert!(matches!(
            map_status(8, "too_many_data_frames"),
            StoreError::Unreachable(_)
        ));
        assert!(matches!(map_status(16, "invalid auth token"), StoreError::Refused(_)));
        assert!(matches!(
            map(&Error::InvalidArgs("no".to_owned())),
            StoreError::Refused(_)
        ));
    }
}
