//! Problem: an error as an answer, in the form of RFC 9457 (`application/problem+json`).

use http::StatusCode;
use memgroup::{ChargeError, FileError, FileProblem, GroupError};
use serde::Serialize;

/// The code of the problem that there is no memory for the answer.
pub(crate) const NO_MEMORY: &str = "no_memory";

/// The code of the problem that a file can only be read.
pub(crate) const READ_ONLY: &str = "file_is_read_only";

/// An error in the form that a client gets.
///
/// `type` stays `about:blank`, which means that the status has the meaning that HTTP gives it.
/// `code` identifies the kind of error for programs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct Problem {
    pub(crate) title: &'static str,
    #[serde(serialize_with = "number")]
    pub(crate) status: StatusCode,
    pub(crate) code: &'static str,
    pub(crate) detail: Box<str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) group: Option<Box<str>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) file: Option<Box<str>>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) allowed: Vec<String>,
    /// Seconds after which trying again may help.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) retry_after_s: Option<u32>,
}

fn number<S: serde::Serializer>(status: &StatusCode, to: S) -> Result<S::Ok, S::Error> {
    to.serialize_u16(status.as_u16())
}

impl Problem {
    pub(crate) fn new(status: StatusCode, code: &'static str, detail: impl Into<Box<str>>) -> Problem {
        let title = status.canonical_reason().unwrap_or("Error");
        let (group, file, allowed, retry_after_s) = (None, None, Vec::new(), None);
        Problem { title, status, code, detail: detail.into(), group, file, allowed, retry_after_s }
    }

    pub(crate) fn bad(code: &'static str, detail: impl Into<Box<str>>) -> Problem {
        Problem::new(StatusCode::BAD_REQUEST, code, detail)
    }

    pub(crate) fn group(mut self, path: impl AsRef<str>) -> Problem {
        self.group = Some(path.as_ref().into());
        self
    }

    pub(crate) fn file(mut self, name: impl AsRef<str>) -> Problem {
        self.file = Some(name.as_ref().into());
        self
    }

    pub(crate) fn allowed<T: Into<String>>(mut self, values: impl IntoIterator<Item = T>) -> Problem {
        self.allowed = values.into_iter().map(Into::into).collect();
        self
    }

    pub(crate) fn retry_after(mut self, seconds: u32) -> Problem {
        self.retry_after_s = Some(seconds);
        self
    }
}

impl From<GroupError> for Problem {
    fn from(error: GroupError) -> Problem {
        use GroupError as E;
        use StatusCode as S;
        let none: &str = "";
        let (status, code, group, remedy) = match &error {
            E::InvalidName { name, .. } => (S::BAD_REQUEST, "invalid_name", Some(&**name), none),
            E::InvalidPath { path, .. } => (S::BAD_REQUEST, "invalid_path", Some(&**path), none),
            E::NotFound { path, .. } => {
                (S::NOT_FOUND, "no_such_group", Some(&**path), "; /v1/tree lists all groups")
            }
            E::Exists { path } => {
                let remedy = "; PUT /v1/groups/PATH/FILE changes its settings";
                (S::CONFLICT, "group_exists", Some(&**path), remedy)
            }
            E::Offline { path } => (S::GONE, "group_removed", Some(&**path), none),
            E::HasChildren { path, .. } => {
                let remedy = ", or all at once with ?recursive=true";
                (S::CONFLICT, "group_has_children", Some(&**path), remedy)
            }
            E::IsRoot => (S::CONFLICT, "group_is_root", Some("/"), none),
            E::TooDeep { path, .. } | E::TooDeepBelow { path, .. } => {
                (S::BAD_REQUEST, "group_too_deep", Some(&**path), none)
            }
            E::TooManyDescendants { path, .. } => {
                (S::INSUFFICIENT_STORAGE, "too_many_groups", Some(&**path), none)
            }
            E::OutOfMemory { path, .. } => (S::INSUFFICIENT_STORAGE, "out_of_memory", Some(&**path), none),
            E::TooMany { .. } => (S::INSUFFICIENT_STORAGE, "too_many_groups", None, none),
            _ => (S::CONFLICT, "group_refused", None, none),
        };
        Problem { group: group.map(Into::into), ..Problem::new(status, code, format!("{error}{remedy}")) }
    }
}

impl From<FileError> for Problem {
    fn from(error: FileError) -> Problem {
        let (status, code) = match &error.problem {
            FileProblem::Unknown => (StatusCode::NOT_FOUND, "no_such_file"),
            FileProblem::ReadOnly => (StatusCode::METHOD_NOT_ALLOWED, READ_ONLY),
            FileProblem::Offline => (StatusCode::GONE, "group_removed"),
            FileProblem::Unsupported(_) => (StatusCode::BAD_REQUEST, "unsupported"),
            FileProblem::Text(_) => (StatusCode::BAD_REQUEST, "invalid_text"),
            FileProblem::Short { .. } => (StatusCode::CONFLICT, "reclaimed_less"),
            _ => (StatusCode::BAD_REQUEST, "not_written"),
        };
        let problem = Problem::new(status, code, format!("failed to {error}"));
        problem.group(&error.path).file(&error.file)
    }
}

impl From<ChargeError> for Problem {
    fn from(error: ChargeError) -> Problem {
        let detail = format!(
            "no memory for the answer: failed to {error}; ask for less, such as one group or ?limit=100, or raise that group's memory.max"
        );
        let problem = Problem::new(StatusCode::SERVICE_UNAVAILABLE, NO_MEMORY, detail).retry_after(1);
        match error.path() {
            Some(path) => problem.group(path),
            None => problem,
        }
    }
}
