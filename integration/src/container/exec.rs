//! Another process of a container.

use containerd_client::{services::v1::ExecProcessRequest, types::v1::Process};
use nix::sys::signal::Signal;
use serde_json::{Value, json};
use tonic::Status;

use super::{Container, any};
use crate::{
    node::Node,
    stdio::{Output, Stdio, Streams},
};

/// Another process of a container, to be started.
#[derive(Debug)]
pub struct ExecBuilder<'container> {
    pub(super) container: &'container Container<'container>,
    pub(super) id: String,
    pub(super) process: Value,
    pub(super) streams: Streams,
}

impl<'container> ExecBuilder<'container> {
    /// Gives it standard input.
    #[must_use]
    pub fn stdin(mut self) -> Self {
        self.streams.stdin = true;
        self
    }

    /// Gives it a terminal (and standard input).
    #[must_use]
    pub fn terminal(mut self) -> Self {
        self.streams = Streams { stdin: true, terminal: true, absent: false };
        self.process["terminal"] = json!(true);
        self
    }

    /// Changes the OCI process.
    #[must_use]
    pub fn edit(mut self, edit: impl FnOnce(&mut Value)) -> Self {
        edit(&mut self.process);
        self
    }

    /// Registers it.
    pub fn create(self) -> Result<Exec<'container>, Status> {
        let node = self.container.node;
        let directory = node.directory().join(format!("fifo/{}-{}-{}", self.container.id, self.id, node.serial()));
        let stdio = Stdio::create(&directory, self.streams);
        node.client().exec(ExecProcessRequest {
            container_id: self.container.id.clone(),
            exec_id: self.id.clone(),
            stdin: stdio.path("stdin"),
            stdout: stdio.path("stdout"),
            stderr: stdio.path("stderr"),
            terminal: self.streams.terminal,
            spec: Some(any("Process", &self.process)),
        })?;
        Ok(Exec { node, container: self.container.id.clone(), id: self.id, stdio, of: self.container })
    }

    /// Registers and starts it.
    pub fn start(self) -> Result<Exec<'container>, Status> {
        let exec = self.create()?;
        if let Err(status) = exec.start() {
            let _ = exec.delete();
            return Err(status);
        }
        Ok(exec)
    }

    /// Runs it to its end and deletes it.
    pub fn run(self) -> Result<(u32, Output), Status> {
        let mut exec = self.start()?;
        let status = exec.wait()?;
        exec.delete()?;
        Ok((status, exec.stdio.finish()))
    }
}

/// Another process of a container.
#[derive(Debug)]
pub struct Exec<'container> {
    node: &'container Node,
    container: String,
    id: String,
    /// Its streams.
    pub stdio: Stdio,
    #[expect(dead_code, reason = "keeps the container from being ended first")]
    of: &'container Container<'container>,
}

impl Exec<'_> {
    /// Runs it.
    pub fn start(&self) -> Result<u32, Status> {
        self.node.client().start(&self.container, &self.id)
    }

    pub fn state(&self) -> Result<Process, Status> {
        self.node.client().state(&self.container, &self.id)
    }

    /// Waits for its end.
    pub fn wait(&self) -> Result<u32, Status> {
        self.node.client().wait(&self.container, &self.id)
    }

    /// Signals it.
    pub fn kill(&self, signal: Signal) -> Result<(), Status> {
        self.node.client().kill(&self.container, &self.id, signal as i32, false)
    }

    /// Kills it and waits for its end.
    #[track_caller]
    pub fn end(self) {
        // It may have ended already.
        let _ = self.kill(Signal::SIGKILL);
        self.wait().expect("wait for a killed exec");
        self.delete().expect("delete an exec that has ended");
    }

    /// Sets its terminal's size.
    pub fn resize(&self, width: u32, height: u32) -> Result<(), Status> {
        self.node.client().resize(&self.container, &self.id, width, height)
    }

    /// Closes its standard input.
    pub fn close_stdin(&mut self) -> Result<(), Status> {
        self.stdio.close_stdin();
        self.node.client().close_stdin(&self.container, &self.id)
    }

    pub fn delete(&self) -> Result<u32, Status> {
        self.node.client().delete_exec(&self.container, &self.id)
    }
}
