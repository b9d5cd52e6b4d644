//! Control: acts that change the tree, each with a line in the log.
//!
//! - I1. An act runs on a thread of its own ([`Actions`](crate::actions::Actions)), because it may
//!   call shrinkers and callbacks of the program, which may take long. The server answers other
//!   requests in the meantime.

use std::sync::Arc;

use bytes::Bytes;
use http::StatusCode;
use http_body_util::{BodyExt as _, Limited};
use hyper::body::{Body as _, Incoming};
use memgroup::{ApplyError, FileProblem, Group, GroupSpec, Hierarchy, scope};

use super::{Answer, Content};
use crate::access::Peer;
use crate::app::App;
use crate::conn::{Conn, Phase};
use crate::log;
use crate::problem::Problem;
use crate::route::{Change, parts};

/// The most bytes of a request's body. They are part of the bytes charged for its connection. No
/// text of a file is longer.
const BODY: usize = 4096;

/// Carries out an act, unless it would remove the group of this path, which is the server's own.
type Act = dyn FnOnce(&Hierarchy, &str) -> Result<StatusCode, Problem> + Send;

/// An act that a request asks for.
struct Order {
    /// The act, for a line of the log.
    text: String,
    carry_out: Box<Act>,
}

impl Order {
    fn new(
        text: String,
        carry_out: impl FnOnce(&Hierarchy, &str) -> Result<StatusCode, Problem> + Send + 'static,
    ) -> Order {
        Order { text, carry_out: Box::new(carry_out) }
    }

    fn read(change: Change, path: &str, recursive: Option<&str>, body: &[u8]) -> Result<Order, Problem> {
        let parts = parts(path)?;
        match change {
            Change::Write => {
                let Some((path, file)) = parts.group_and_file() else {
                    let detail = format!(
                        "{path:?} names no file: write /v1/groups/PATH/FILE without a slash at the end"
                    );
                    return Err(Problem::bad("no_file_named", detail).group(parts.group()));
                };
                let text = std::str::from_utf8(body).map_err(|_| {
                    let detail = format!(
                        "failed to write {file} of group {path}: the body is not UTF-8; write it as echo does"
                    );
                    Problem::bad("invalid_text", detail).group(&path).file(file)
                })?;
                let act = format!("write {:?} to {file:?} of group {path:?}", text.trim_end());
                let (file, text) = (file.to_owned(), text.to_owned());
                Ok(Order::new(act, move |hierarchy, _| write(hierarchy, &path, &file, &text)))
            }
            Change::Create => {
                let path = parts.group();
                let mut act = format!("create group {path:?}");
                let mut settings: Option<GroupSpec> = None;
                if !body.is_empty() {
                    settings = Some(serde_json::from_slice(body).map_err(|error| {
                        let detail =
                            format!("failed to create group {path}: the settings in the body are wrong, write them as {{\"max\":\"64M\"}}: {error}");
                        Problem::bad("invalid_settings", detail).group(&path)
                    })?);
                    act += &format!(" with {:?}", String::from_utf8_lossy(body));
                }
                Ok(Order::new(act, move |hierarchy, _| {
                    create(hierarchy, &path, |group| settings.iter().try_for_each(|spec| group.apply(spec)))
                }))
            }
            Change::Remove => {
                let path = parts.group();
                let (is_recursive, more) = match recursive {
                    None | Some("false") => (false, ""),
                    Some("true") => (true, " and all groups below"),
                    Some(other) => {
                        let detail = format!("recursive={other:?} is neither true nor false");
                        return Err(Problem::bad("invalid_query", detail).allowed(["true", "false"]));
                    }
                };
                let act = format!("remove group {path:?}{more}");
                Ok(Order::new(act, move |hierarchy, own| remove(hierarchy, &path, is_recursive, own)))
            }
        }
    }
}

fn write(hierarchy: &Hierarchy, path: &str, file: &str, text: &str) -> Result<StatusCode, Problem> {
    hierarchy.lookup(path)?.write_file(file, text).map_err(|error| {
        let is_name = matches!(error.problem, FileProblem::Unknown | FileProblem::ReadOnly);
        let problem = Problem::from(error);
        if is_name { problem.allowed(writable(hierarchy)) } else { problem }
    })?;
    Ok(StatusCode::NO_CONTENT)
}

/// Removes a group, unless it is the server's `own` or above that.
fn remove(hierarchy: &Hierarchy, path: &str, is_recursive: bool, own: &str) -> Result<StatusCode, Problem> {
    if own == path || own.strip_prefix(path).is_some_and(|rest| rest.starts_with('/')) {
        let detail = format!(
            "failed to remove group {path}: the server itself is charged to {own}; stop the server instead"
        );
        return Err(Problem::new(StatusCode::CONFLICT, "own_group", detail).group(path));
    }
    let group = hierarchy.lookup(path)?;
    if is_recursive {
        group.remove_all()?
    } else {
        group.remove()?
    }
    Ok(StatusCode::NO_CONTENT)
}

/// Creates a group and applies its settings. If they cannot be applied, the group is removed again,
/// so that no group is left without its limit.
fn create(
    hierarchy: &Hierarchy,
    path: &str,
    apply: impl FnOnce(&Group) -> Result<(), ApplyError>,
) -> Result<StatusCode, Problem> {
    let group = hierarchy.create(path)?;
    apply(&group).map_err(|error| {
        // This fails only if another thread has removed the group, or has created a group below it.
        let _gone = group.remove();
        Problem::new(StatusCode::CONFLICT, "not_applied", format!("failed to {error}")).group(path)
    })?;
    Ok(StatusCode::CREATED)
}

/// The names of the files that can be written.
fn writable(hierarchy: &Hierarchy) -> impl Iterator<Item = String> {
    hierarchy.files().into_iter().filter(|file| file.writable).map(|file| file.name)
}

pub(super) async fn act(
    app: &Arc<App>,
    conn: &Conn,
    peer: Peer,
    change: Change,
    path: &str,
    recursive: Option<&str>,
    body: Incoming,
) -> Result<Answer, Problem> {
    conn.enter(Phase::Reading);
    let body = read_body(app, body).await?;
    conn.enter(Phase::Answering);
    let order = Order::read(change, path, recursive, &body)?;
    if change != Change::Write {
        check_group(&app.hierarchy, path)?;
    }
    let Some((actions, place)) = app.actions.as_ref().and_then(|one| Some((one, one.place()?))) else {
        let detail = "other control actions are under way, such as a write to memory.reclaim; try again";
        return Err(Problem::new(StatusCode::SERVICE_UNAVAILABLE, "busy", detail).retry_after(1));
    };
    let (hierarchy, group, own) = (app.hierarchy.clone(), app.account.group.clone(), app.serve.group.clone());
    let Order { text, carry_out } = order;
    let panicked =
        format!("failed to {text}: a callback of the program panicked; its standard error has the message");
    let carry_out = move || {
        let _scope = scope::enter(&group);
        let result = carry_out(&hierarchy, &own);
        log::control(&peer, &text, &result);
        result
    };
    let result = actions
        .run(place, carry_out)
        .await
        .unwrap_or_else(|| Err(Problem::new(StatusCode::INTERNAL_SERVER_ERROR, "panicked", panicked)));
    app.snapshots.forget();
    let mut answer = Answer::new(super::TEXT, Content::Fixed(Bytes::new()));
    answer.status = result?;
    Ok(answer)
}

/// Refuses the path of a file for an act on a group.
fn check_group(hierarchy: &Hierarchy, path: &str) -> Result<(), Problem> {
    let parts = parts(path)?;
    let Some((group, file)) = parts.group_and_file() else { return Ok(()) };
    if hierarchy.files().iter().all(|one| one.name != file) {
        return Ok(());
    }
    let detail = format!(
        "{file} is a file of group {group}: PUT writes it; a slash at the end of the path means a group"
    );
    Err(Problem::bad("names_a_file", detail).group(&group).file(file))
}

async fn read_body(app: &App, body: Incoming) -> Result<Bytes, Problem> {
    let too_large = || {
        let detail = format!("the body has more than {BODY} bytes, the most that one may have");
        Problem::new(StatusCode::PAYLOAD_TOO_LARGE, "body_too_large", detail)
    };
    if body.size_hint().lower() > BODY as u64 {
        return Err(too_large());
    }
    let read = tokio::time::timeout(app.serve.times.body, Limited::new(body, BODY).collect()).await;
    match read {
        Ok(Ok(collected)) => Ok(collected.to_bytes()),
        Ok(Err(error)) if error.is::<http_body_util::LengthLimitError>() => Err(too_large()),
        Ok(Err(error)) => Err(Problem::bad("invalid_body", format!("the body cannot be read: {error}"))),
        Err(_) => {
            let detail = format!("the body took more than {:?}", app.serve.times.body);
            Err(Problem::new(StatusCode::REQUEST_TIMEOUT, "slow_body", detail))
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// The act that is read, or the code of the problem.
    fn read(change: Change, path: &str, body: &[u8]) -> Result<String, &'static str> {
        let read = Order::read(change, &format!("/v1/groups{path}"), None, body);
        read.map(|order| order.text).map_err(|problem| problem.code)
    }

    #[test]
    fn reads_each_order() {
        let act = |text: &str| Ok(text.to_owned());
        let written = act("write \"64M\" to \"memory.max\" of group \"/t\"");
        assert_eq!(read(Change::Write, "/t/memory.max", b"64M\n"), written);
        assert_eq!(read(Change::Write, "/", b"1"), Err("no_file_named"));
        assert_eq!(read(Change::Create, "/t/", b""), act("create group \"/t\""));
        let with = act("create group \"/t\" with \"{\\\"max\\\":1}\"");
        assert_eq!(read(Change::Create, "/t", b"{\"max\":1}"), with);
        for wrong in ["[]", "null", "{}x", "{\"max\":{}}", "{\"max\":1,\"max\":2}", "\u{0}"] {
            assert_eq!(read(Change::Create, "/t", wrong.as_bytes()), Err("invalid_settings"), "{wrong}");
        }
        let remove = |value: &str| {
            let read = Order::read(Change::Remove, "/v1/groups/t", Some(value), b"");
            read.map(|order| order.text).map_err(|problem| problem.code)
        };
        assert_eq!(remove("false"), act("remove group \"/t\""));
        assert_eq!(remove("true"), act("remove group \"/t\" and all groups below"));
        assert_eq!(remove("1"), Err("invalid_query"));
    }

    #[test]
    fn a_group_whose_settings_cannot_be_applied_is_not_left() {
        let hierarchy = Hierarchy::new(memgroup::Config::new()).unwrap();
        let problem = create(&hierarchy, "/t", |group| {
            group.set_max(4096).unwrap();
            // Only a wrong value is refused while the group is there.
            group.set_weight(0).map_err(ApplyError::from)
        });
        let problem = problem.unwrap_err();
        assert_eq!((problem.status, problem.code), (StatusCode::CONFLICT, "not_applied"));
        assert_eq!(problem.group.as_deref(), Some("/t"));
        assert!(hierarchy.lookup("/t").is_err(), "{}", problem.detail);
        create(&hierarchy, "/t", |_| Ok(())).unwrap();
        assert_eq!(
            create(&hierarchy, "/t", |_| panic!("there is a group")).unwrap_err().code,
            "group_exists"
        );
    }

    proptest! {
        #[test]
        fn no_body_panics(
            path in "(/|%|%2[fF]|[a-z]|memory\\.max){0,8}",
            body in prop_oneof![
                prop::collection::vec(any::<u8>(), 0..200),
                "(\\{|\\}|\\[|\"max\"|\"share\"|:|,|[0-9]|\"64M\"|null|true){0,20}".prop_map(String::into_bytes),
            ],
        ) {
            for act in [Change::Write, Change::Create, Change::Remove] {
                if let Ok(order) = Order::read(act, &format!("/v1/groups/{path}"), None, &body) {
                    prop_assert!(!order.text.contains('\n'), "one line for the log");
                }
            }
        }
    }
}
