//! Request: a group for each request, and the answers when a limit refuses.

mod future;
mod layer;

use std::fmt;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

pub use future::{RequestFuture, ResponseBody};
use http::header::{CONTENT_TYPE, RETRY_AFTER};
use http::{HeaderValue, Response, StatusCode};
pub use layer::{RequestGroups, RequestService};
use memgroup::{ChargeError, ChargeErrorKind, Group, GroupError, OwnedGroup};

use crate::body::BodyFailure;
use crate::limited::Ended;
use crate::tasks::Tasks;

/// The group of one request, below its tenant's. Handlers find it in the request's extensions.
/// Clones are the same group, which is removed when the last of them is dropped.
#[derive(Clone, Debug)]
pub struct RequestGroup {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    /// Set when the handler is called; `None` if the group has another hook. It lasts as long as
    /// the group, so closures that own the group keep it. It is dropped first, so that a kill that
    /// has not ended still waits for the group's bytes.
    tasks: OnceLock<Option<Tasks>>,
    group: OwnedGroup,
    tenant: Group,
    retry_after: Duration,
}

impl RequestGroup {
    fn new(group: OwnedGroup, tenant: Group, retry_after: Duration) -> RequestGroup {
        RequestGroup { inner: Arc::new(Inner { tasks: OnceLock::new(), group, tenant, retry_after }) }
    }

    /// The hook that ends the handler.
    fn tasks(&self) -> Option<&Tasks> {
        self.inner.tasks.get_or_init(|| Tasks::of_request(self.group()).ok()).as_ref()
    }

    /// The handler has returned its response.
    fn answered(&self) {
        self.inner.tasks.get().into_iter().flatten().for_each(Tasks::answered);
    }

    /// The request's group.
    pub fn group(&self) -> &Group {
        &self.inner.group
    }

    /// The group of the request's tenant.
    pub fn tenant(&self) -> &Group {
        &self.inner.tenant
    }

    /// The answer to a charge that was refused:
    ///
    /// | limit that refused | status |
    /// |---|---|
    /// | that of the request's group, or a charge larger than any group can count | 413 |
    /// | that of the tenant | 429, with `Retry-After` |
    /// | any other | 503, with `Retry-After` |
    pub fn refuse(&self, error: &ChargeError) -> Refusal {
        let refused_by = error.group();
        let is_final = error.kind() == ChargeErrorKind::TooLarge || refused_by == self.group().id();
        let status = match is_final {
            true => StatusCode::PAYLOAD_TOO_LARGE,
            false if refused_by == self.tenant().id() => StatusCode::TOO_MANY_REQUESTS,
            false => StatusCode::SERVICE_UNAVAILABLE,
        };
        Refusal::new(status, self.inner.retry_after, format_args!("failed to {error}"))
    }

    fn cut_off(&self, failure: &BodyFailure) -> Refusal {
        match failure {
            BodyFailure::Refused(error) => self.refuse(error),
            BodyFailure::TooLarge { .. } => {
                Refusal::new(StatusCode::PAYLOAD_TOO_LARGE, self.inner.retry_after, failure)
            }
        }
    }

    /// A request that exceeds its own limit will do so again; one that was stopped for another may
    /// succeed later.
    fn ended(&self, ended: &Ended) -> Refusal {
        let status = match ended {
            Ended::OverLimit { .. } => StatusCode::PAYLOAD_TOO_LARGE,
            Ended::Killed { .. } | Ended::Stopped { .. } => StatusCode::SERVICE_UNAVAILABLE,
        };
        Refusal::new(status, self.inner.retry_after, ended)
    }
}

/// The answer to a request that a limit refuses: a status, a text, and `Retry-After` if a later
/// attempt may succeed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    status: StatusCode,
    retry_after: Option<u64>,
    text: String,
}

impl Refusal {
    fn new(status: StatusCode, retry_after: Duration, text: impl fmt::Display) -> Refusal {
        let is_for_now = matches!(status, StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE);
        // Whole seconds, at least one, because 0 asks for an attempt at once.
        let seconds = retry_after.as_secs().saturating_add(u64::from(retry_after.subsec_nanos() > 0));
        Refusal { status, retry_after: is_for_now.then_some(seconds.max(1)), text: format!("{text}\n") }
    }

    /// No group could be created for the request.
    fn no_group(retry_after: Duration, error: &GroupError) -> Refusal {
        Refusal::new(StatusCode::SERVICE_UNAVAILABLE, retry_after, format_args!("failed to {error}"))
    }

    /// Its status: 413, 429 or 503, or the one that the tenant's function returned.
    pub fn status(&self) -> StatusCode {
        self.status
    }

    /// Seconds after which the client may try again.
    pub fn retry_after(&self) -> Option<u64> {
        self.retry_after
    }

    /// The response.
    pub fn into_response<B: From<String>>(self) -> Response<B> {
        let mut response = Response::new(B::from(self.text));
        *response.status_mut() = self.status;
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("text/plain; charset=utf-8"));
        if let Some(seconds) = self.retry_after {
            headers.insert(RETRY_AFTER, seconds.into());
        }
        response
    }
}
