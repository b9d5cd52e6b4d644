//! A scheduler and executors on this machine, each a process.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::net::{Ipv4Addr, TcpListener};
use std::path::PathBuf;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::Mutex;
use std::time::{Duration, Instant};
use std::{env, fs, thread};

use memgroup_ballista::{Answer, ClusterUsage};
use tempfile::TempDir;

use crate::Failure;
use crate::roles::{Role, VARIABLE};

/// The time within which all processes must be there.
const START: Duration = Duration::from_secs(60);

/// A process that ends with this one: when the pipe to it closes, and at the latest when this is
/// dropped.
struct Process {
    child: Child,
    to: ChildStdin,
    from: BufReader<ChildStdout>,
}

impl Process {
    fn start(role: &Role, arguments: &[&str]) -> Result<Process, Failure> {
        let mut child = Command::new(env::current_exe()?)
            .args(arguments)
            .env(VARIABLE, serde_json::to_string(role)?)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let (to, from) = (child.stdin.take(), child.stdout.take());
        let (to, from) = to.zip(from).ok_or("a process without pipes")?;
        Ok(Process { child, to, from: BufReader::new(from) })
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A port that was free a moment ago.
pub(crate) fn free_port() -> Result<u16, Failure> {
    Ok(TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?.port())
}

/// The processes of a cluster. They end when it is dropped.
pub(crate) struct Cluster {
    scheduler: Mutex<Process>,
    executors: Mutex<BTreeMap<String, Process>>,
    port: u16,
    _dir: TempDir,
}

impl Cluster {
    /// Starts a scheduler and as many executors, all of which have the tree `tree`, in TOML. Waits
    /// until the scheduler hears of them all.
    ///
    /// `arguments` are those of each process, for a program that plays its role only with them.
    pub(crate) fn start(
        tree: &str,
        executors: usize,
        vcores: usize,
        arguments: &[&str],
    ) -> Result<Cluster, Failure> {
        let dir = tempfile::tempdir()?;
        let file = dir.path().join("tree.toml");
        fs::write(&file, tree)?;
        let port = free_port()?;
        let scheduler = Process::start(&Role::Scheduler { port }, arguments)?;
        let start = |number: usize| -> Result<(String, Process), Failure> {
            let id = format!("executor-{number}");
            let work_dir: PathBuf = dir.path().join(&id);
            fs::create_dir(&work_dir)?;
            let role = Role::Executor {
                id: id.clone(),
                scheduler_port: port,
                port: free_port()?,
                grpc_port: free_port()?,
                work_dir,
                tree: file.clone(),
                vcores,
            };
            Ok((id, Process::start(&role, arguments)?))
        };
        let processes = (1..=executors).map(start).collect::<Result<_, Failure>>()?;
        let cluster =
            Cluster { scheduler: Mutex::new(scheduler), executors: Mutex::new(processes), port, _dir: dir };
        let begin = Instant::now();
        while cluster.usage()?.executors.values().filter(|executor| executor.answer == Answer::Now).count()
            < executors
        {
            if begin.elapsed() > START {
                return Err("the executors did not register with the scheduler".into());
            }
            thread::sleep(Duration::from_millis(100));
        }
        Ok(cluster)
    }

    /// The address for clients.
    pub(crate) fn url(&self) -> String {
        format!("df://127.0.0.1:{}", self.port)
    }

    /// The usage of the cluster, as its scheduler collects it.
    pub(crate) fn usage(&self) -> Result<ClusterUsage, Failure> {
        let mut scheduler = self.scheduler.lock().unwrap();
        writeln!(scheduler.to, "usage")?;
        loop {
            let mut line = String::new();
            if scheduler.from.read_line(&mut line)? == 0 {
                return Err("the scheduler ended".into());
            }
            // A program with tests writes lines of its own.
            if line.starts_with('{') {
                return Ok(serde_json::from_str(&line)?);
            }
        }
    }

    /// Kills an executor by SIGKILL.
    pub(crate) fn kill(&self, id: &str) {
        drop(self.executors.lock().unwrap().remove(id));
    }
}
