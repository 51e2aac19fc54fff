//! Registration with the kubelet.

use std::{path::PathBuf, sync::Arc};

use hyper::{Request, Response, body::Incoming};
use kubernetes_api::names::DRIVER;
use tonic::body::Body;

use crate::{
    grpc::{Answer, Methods, unary, unknown},
    kubelet_api::{
        Empty, PluginInfo, RegistrationStatus, dra, health,
        registration::{DRA_PLUGIN, GET_INFO, NOTIFY},
    },
};

/// The registration service.
#[derive(Debug)]
pub(crate) struct Registration {
    /// Socket of the other services.
    pub(crate) endpoint: PathBuf,
}

impl Registration {
    fn info(&self) -> PluginInfo {
        PluginInfo {
            plugin_type: DRA_PLUGIN.to_owned(),
            name: DRIVER.to_owned(),
            endpoint: self.endpoint.display().to_string(),
            supported_versions: vec![dra::SERVICE.to_owned(), health::SERVICE.to_owned()],
        }
    }
}

impl Methods for Registration {
    fn call(self: Arc<Self>, request: Request<Incoming>) -> Answer<Response<Body>> {
        match request.uri().path() {
            GET_INFO => unary(request, move |_: Empty| Box::pin(async move { self.info() })),
            NOTIFY => unary(request, |status| Box::pin(async move { note(&status) })),
            _ => unknown(&request),
        }
    }
}

fn note(status: &RegistrationStatus) -> Empty {
    if status.plugin_registered {
        tracing::info!("registered with the kubelet");
    } else {
        tracing::error!(why = status.error, "the kubelet does not register this plugin");
    }
    Empty {}
}
