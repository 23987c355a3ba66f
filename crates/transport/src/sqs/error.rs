//! What errors of SQS mean. Its texts are not passed on: they name queues by their addresses, and keys.

use aws_sdk_sqs::config::http::HttpResponse;
use aws_sdk_sqs::error::{ProvideErrorMetadata, SdkError};

use super::SERVICE;
use crate::TransportError;

/// What went wrong, and for whom.
#[derive(Debug)]
pub(super) enum Fault {
    /// There is something wrong with this queue: others may work.
    OfQueue(String),
    OfService(TransportError),
}

impl From<Fault> for TransportError {
    fn from(fault: Fault) -> Self {
        match fault {
            Fault::OfQueue(reason) => refused(reason),
            Fault::OfService(error) => error,
        }
    }
}

impl From<TransportError> for Fault {
    fn from(error: TransportError) -> Self {
        Self::OfService(error)
    }
}

pub(super) fn unreachable(reason: impl Into<String>) -> TransportError {
    TransportError::Unreachable { service: SERVICE, reason: reason.into() }
}

pub(super) fn refused(reason: impl Into<String>) -> TransportError {
    TransportError::Refused { service: SERVICE, reason: reason.into() }
}

pub(super) fn of<E: ProvideErrorMetadata>(error: &SdkError<E, HttpResponse>) -> TransportError {
    match error {
        SdkError::ConstructionFailure(_) => {
            refused("the request could not be created: are region and credentials set?")
        }
        SdkError::TimeoutError(_) => unreachable("it does not answer in time"),
        SdkError::DispatchFailure(failure) if failure.is_timeout() => unreachable("it does not answer in time"),
        SdkError::DispatchFailure(failure) if failure.is_io() => unreachable("the connection failed"),
        // Among others: the credentials could not be fetched.
        SdkError::DispatchFailure(_) => unreachable("the request could not be sent: are there credentials?"),
        SdkError::ResponseError(_) => unreachable("unexpected response"),
        SdkError::ServiceError(service) => {
            let code = service.err().code().unwrap_or("an error without a code");
            let status = service.raw().status().as_u16();
            let passing = status >= 500 || status == 429 || code.contains("Throttl") || code.contains("OverLimit");
            match code {
                _ if passing => unreachable(format!("it answered with {code}")),
                _ if is_about_credentials(code) => unreachable(format!("it does not take the credentials: {code}")),
                _ => refused(format!("it answered with {code}")),
            }
        }
        _ => unreachable("the request failed"),
    }
}

/// Whether it does not know who is calling. Then it will refuse all queues alike; that a caller may not use *this* queue
/// has other codes.
fn is_about_credentials(code: &str) -> bool {
    const CODES: [&str; 7] = [
        "InvalidClientTokenId",
        "UnrecognizedClient",
        "SignatureDoesNotMatch",
        "InvalidSignature",
        "ExpiredToken",
        "MissingAuthenticationToken",
        "InvalidAccessKeyId",
    ];
    CODES.iter().any(|known| code.starts_with(known))
}

/// Whether the queue is not there, or no longer.
pub(super) fn is_missing_queue<E: ProvideErrorMetadata>(error: &SdkError<E, HttpResponse>) -> bool {
    let code = error.as_service_error().and_then(ProvideErrorMetadata::code);
    code.is_some_and(|code| code.ends_with("QueueDoesNotExist") || code.ends_with("NonExistentQueue"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_concerns_the_caller_concerns_all_queues() {
        for code in ["InvalidClientTokenId", "UnrecognizedClientException", "ExpiredTokenException"] {
            assert!(is_about_credentials(code), "{code}");
        }
        for code in ["AccessDenied", "AccessDeniedException", "KmsAccessDenied", "InvalidParameterValue"] {
            assert!(!is_about_credentials(code), "{code}");
        }
    }
}
