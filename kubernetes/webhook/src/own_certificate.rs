//! A certificate of the webhook's own making, kept in a Secret and told to the API server.
//!
//! Each certificate is signed by an authority that is made for it and whose key nobody keeps. The
//! API server is told the new authority beside the one before, so that instances that still serve
//! the certificate before are believed until they have read the Secret again.

use std::{sync::Arc, time::Duration};

use jiff::{SignedDuration, Timestamp, tz::TimeZone};
use k8s_openapi::{
    ByteString,
    api::{admissionregistration::v1::MutatingWebhookConfiguration, core::v1::Secret},
};
use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose, date_time_ymd,
};
use serde_json::json;
use tokio::sync::watch;
use tokio_rustls::rustls::ServerConfig;

use crate::{
    api::{Api, ApiError, CONFLICT},
    tls::{self, TlsError},
};

/// Lifetime of a certificate, and of its authority.
const LIFETIME: SignedDuration = SignedDuration::from_hours(24 * 365);
/// Time before its end at which it is renewed.
const RENEWED_BEFORE: SignedDuration = SignedDuration::from_hours(24 * 90);
/// Clocks may differ by so much.
const CLOCKS: SignedDuration = SignedDuration::from_hours(24);
/// Pause between two looks at the Secret.
const PAUSE: Duration = Duration::from_secs(60);
/// Annotations of the Secret: the names that the certificate is for, and its end.
const NAMES: &str = "webhook.egpu.io/names";
const END: &str = "webhook.egpu.io/not-after";
/// Keys of the Secret, as in all of type `kubernetes.io/tls`.
const AUTHORITY: &str = "ca.crt";
const CERTIFICATE: &str = "tls.crt";
const KEY: &str = "tls.key";

/// A certificate that cannot be made, kept or told.
#[derive(Debug, thiserror::Error)]
pub enum OwnCertificateError {
    /// The API server.
    #[error("{action}")]
    Api {
        /// The step that failed.
        action: &'static str,
        /// The reason.
        source: ApiError,
    },
    /// It cannot be made.
    #[error("a certificate for {names} cannot be made")]
    Made {
        names: String,
        /// The reason.
        source: rcgen::Error,
    },
    /// It cannot be served.
    #[error("the certificate in the Secret cannot be served")]
    Served(#[from] TlsError),
    /// No name to make it for.
    #[error("MutatingWebhookConfiguration {0} names no service and no URL")]
    NoName(String),
}

/// The place of the certificate, and who is told.
#[derive(Debug, Clone)]
pub(crate) struct OwnCertificate {
    api: Api,
    namespace: String,
    secret: String,
    configuration: String,
}

impl OwnCertificate {
    /// `secret`: NAME, or NAMESPACE/NAME.
    pub(crate) fn new(api: Api, secret: &str, configuration: &str) -> Self {
        let (namespace, secret) = secret.split_once('/').unwrap_or((api.own_namespace(), secret));
        let (namespace, secret) = (namespace.to_owned(), secret.to_owned());
        Self { api, namespace, secret, configuration: configuration.to_owned() }
    }

    /// Returns what is to be served, after the API server has been told who signed it.
    pub(crate) async fn current(&self) -> Result<tls::KeyPair, OwnCertificateError> {
        let read = self.api.webhook_configuration(&self.configuration).await;
        let configuration = read.map_err(failed("the MutatingWebhookConfiguration cannot be read"))?;
        let names = names(&configuration);
        if names.is_empty() {
            return Err(OwnCertificateError::NoName(self.configuration.clone()));
        }
        let secret = self.kept(&names).await?;
        self.tell(&configuration, &ByteString(part(&secret, AUTHORITY))).await?;
        Ok(key_pair(&secret))
    }

    /// The Secret with a certificate for these names that is good for a while.
    async fn kept(&self, names: &[String]) -> Result<Secret, OwnCertificateError> {
        loop {
            let read = self.api.secret(&self.namespace, &self.secret).await;
            let secret = read.map_err(failed("the Secret for the certificate cannot be read; it may be empty"))?;
            if is_good(&secret, names, Timestamp::now()) {
                return Ok(secret);
            }
            let renewed = renewed(secret, names, Timestamp::now() + LIFETIME);
            let secret = renewed.map_err(|source| OwnCertificateError::Made { names: names.join(", "), source })?;
            match self.api.replace_secret(&self.namespace, &secret).await {
                // Another instance has made one.
                Err(error) if error.is(CONFLICT) => {}
                replaced => return replaced.map_err(failed("the Secret for the certificate cannot be written")),
            }
        }
    }

    /// Tells the API server whom to believe, where it does not know.
    async fn tell(
        &self,
        configuration: &MutatingWebhookConfiguration,
        authorities: &ByteString,
    ) -> Result<(), OwnCertificateError> {
        let webhooks = configuration.webhooks.iter().flatten();
        let untold: Vec<_> = webhooks
            .filter(|webhook| webhook.client_config.ca_bundle.as_ref() != Some(authorities))
            .map(|webhook| json!({"name": webhook.name, "clientConfig": {"caBundle": authorities}}))
            .collect();
        if untold.is_empty() {
            return Ok(());
        }
        tracing::info!(configuration = self.configuration, "the API server is told who signs the certificate");
        let told = self.api.patch_webhook_configuration(&self.configuration, json!({"webhooks": untold})).await;
        told.map_err(failed("the MutatingWebhookConfiguration cannot be written"))
    }

    /// Serves what the Secret holds, renews it, and tells the API server anew, for ever.
    pub(crate) async fn follow(self, mut serving: tls::KeyPair, served: watch::Sender<Arc<ServerConfig>>) {
        loop {
            tokio::time::sleep(PAUSE).await;
            let changed = match self.current().await {
                Ok(pair) if pair == serving => continue,
                Ok(pair) => pair.server_config().map(|config| (pair, config)).map_err(OwnCertificateError::Served),
                Err(error) => Err(error),
            };
            match changed {
                Ok((pair, config)) => {
                    tracing::info!("the certificate has changed");
                    serving = pair;
                    served.send_replace(config);
                }
                Err(error) => tracing::warn!(error = base::error_chain(&error), "the certificate stays as it was"),
            }
        }
    }
}

fn failed(action: &'static str) -> impl FnOnce(ApiError) -> OwnCertificateError {
    move |source| OwnCertificateError::Api { action, source }
}

/// The names by which the API server finds the webhook, each once.
fn names(configuration: &MutatingWebhookConfiguration) -> Vec<String> {
    let webhooks = configuration.webhooks.iter().flatten();
    let mut names: Vec<String> = webhooks
        .filter_map(|webhook| {
            let client = &webhook.client_config;
            match (&client.service, &client.url) {
                (Some(service), _) => Some(format!("{}.{}.svc", service.name, service.namespace)),
                (None, url) => url.as_ref()?.parse::<hyper::Uri>().ok()?.host().map(str::to_owned),
            }
        })
        .collect();
    names.sort();
    names.dedup();
    names
}

fn part(secret: &Secret, key: &str) -> Vec<u8> {
    secret.data.as_ref().and_then(|data| data.get(key)).map(|bytes| bytes.0.clone()).unwrap_or_default()
}

fn key_pair(secret: &Secret) -> tls::KeyPair {
    tls::KeyPair { certificate: part(secret, CERTIFICATE), key: part(secret, KEY) }
}

fn is_good(secret: &Secret, names: &[String], now: Timestamp) -> bool {
    let Some(annotations) = &secret.metadata.annotations else { return false };
    let end: Option<Timestamp> = annotations.get(END).and_then(|end| end.parse().ok());
    annotations.get(NAMES) == Some(&names.join(","))
        && end.is_some_and(|end| now + RENEWED_BEFORE < end)
        && key_pair(secret).server_config().is_ok()
}

/// The Secret with another certificate in it.
fn renewed(mut secret: Secret, names: &[String], end: Timestamp) -> Result<Secret, rcgen::Error> {
    let issued = issue(names, end)?;
    let authorities = format!("{}{}", issued.authority, first_certificate(&part(&secret, AUTHORITY)));
    let data = [(AUTHORITY, authorities), (CERTIFICATE, issued.certificate), (KEY, issued.key)];
    secret.data = Some(data.map(|(key, text)| (key.to_owned(), ByteString(text.into_bytes()))).into());
    let annotations = [(NAMES, names.join(",")), (END, end.to_string())];
    let kept = secret.metadata.annotations.get_or_insert_default();
    kept.extend(annotations.map(|(name, value)| (name.to_owned(), value)));
    Ok(secret)
}

/// The newest of several authorities.
fn first_certificate(authorities: &[u8]) -> String {
    const END_OF_ONE: &str = "-----END CERTIFICATE-----\n";
    let text = String::from_utf8_lossy(authorities);
    text.split_inclusive(END_OF_ONE).next().filter(|one| one.ends_with(END_OF_ONE)).unwrap_or_default().to_owned()
}

/// A certificate, its key, and the authority that signed it, PEM all.
pub(crate) struct Issued {
    pub(crate) authority: String,
    pub(crate) certificate: String,
    pub(crate) key: String,
}

/// Makes an authority, and a certificate of it for these names.
pub(crate) fn issue(names: &[String], end: Timestamp) -> Result<Issued, rcgen::Error> {
    let mut authority = parameters(Vec::new(), "egpu-webhook authority", end)?;
    authority.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    authority.key_usages = vec![KeyUsagePurpose::KeyCertSign];
    let authority_key = KeyPair::generate()?;
    let authority_certificate = authority.self_signed(&authority_key)?;
    let mut server = parameters(names.to_vec(), "egpu-webhook", end)?;
    server.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
    let key = KeyPair::generate()?;
    let certificate = server.signed_by(&key, &Issuer::new(authority, authority_key))?;
    Ok(Issued { authority: authority_certificate.pem(), certificate: certificate.pem(), key: key.serialize_pem() })
}

fn parameters(names: Vec<String>, subject: &str, end: Timestamp) -> Result<CertificateParams, rcgen::Error> {
    let mut parameters = CertificateParams::new(names)?;
    let mut distinguished = DistinguishedName::new();
    // Authorities of one name would be taken for one another.
    distinguished.push(DnType::CommonName, format!("{subject} {}", end.as_second()));
    parameters.distinguished_name = distinguished;
    let of_day = |(year, month, day)| date_time_ymd(year, month, day);
    parameters.not_before = of_day(day(end - LIFETIME - CLOCKS));
    parameters.not_after = of_day(day(end + CLOCKS));
    Ok(parameters)
}

/// Year, month and day of a time.
fn day(time: Timestamp) -> (i32, u8, u8) {
    let date = time.to_zoned(TimeZone::UTC).date();
    let of = |part: i8| u8::try_from(part).unwrap_or(1);
    (date.year().into(), of(date.month()), of(date.day()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_renewed_before_its_end_for_other_names_and_when_it_cannot_be_served() {
        let now: Timestamp = "2026-01-01T00:00:00Z".parse().unwrap();
        let names = ["a.egpu.svc".to_owned(), "b".to_owned()];
        let secret = |names: &[String], days: i64| {
            renewed(Secret::default(), names, now + SignedDuration::from_hours(24 * days)).unwrap()
        };
        assert!(is_good(&secret(&names, 91), &names, now));
        assert!(!is_good(&secret(&names, 89), &names, now));
        assert!(!is_good(&secret(&names[..1], 91), &names, now));
        assert!(!is_good(&Secret { data: None, ..secret(&names, 91) }, &names, now));
        assert!(!is_good(&Secret::default(), &names, now));
    }

    #[test]
    fn renewed_it_keeps_what_others_wrote_and_the_authority_before() {
        let names = ["a.egpu.svc".to_owned()];
        let end = Timestamp::now() + LIFETIME;
        let mut empty = Secret::default();
        empty.metadata.annotations = Some([("meta.helm.sh/release-name".to_owned(), "egpu".to_owned())].into());
        let first = renewed(empty, &names, end).unwrap();
        assert_eq!(first.metadata.annotations.as_ref().map(|annotations| annotations.len()), Some(3));
        let second = renewed(first.clone(), &names, end).unwrap();
        assert!(part(&second, AUTHORITY).ends_with(&part(&first, AUTHORITY)));
        assert_ne!(key_pair(&second).key, key_pair(&first).key);
    }

    #[test]
    fn names_are_those_that_the_api_server_asks_for() {
        let webhook =
            |client| json!({"name": "x", "clientConfig": client, "sideEffects": "None", "admissionReviewVersions": []});
        let service = webhook(json!({"service": {"name": "egpu-webhook", "namespace": "egpu"}}));
        let url = webhook(json!({"url": "https://10.0.0.1:8443/mutate"}));
        let configuration = json!({"metadata": {}, "webhooks": [url, service, service]});
        let configuration: MutatingWebhookConfiguration = serde_json::from_value(configuration).unwrap();
        assert_eq!(names(&configuration), ["10.0.0.1", "egpu-webhook.egpu.svc"]);
    }

    #[test]
    fn what_is_made_can_be_served_and_the_authority_before_stays_beside_it() {
        let end = Timestamp::now() + LIFETIME;
        let issued = issue(&["egpu-webhook.egpu.svc".to_owned(), "10.0.0.1".to_owned()], end).unwrap();
        let pair = tls::KeyPair { certificate: issued.certificate.into_bytes(), key: issued.key.into_bytes() };
        assert!(pair.server_config().is_ok());
        let other = issue(&["x".to_owned()], end).unwrap();
        let crossed = tls::KeyPair { key: other.key.into_bytes(), ..pair };
        assert!(crossed.server_config().is_err(), "a key of another certificate");
        let two = format!("{}{}", issued.authority, other.authority);
        assert_eq!(first_certificate(two.as_bytes()), issued.authority);
        assert_eq!(first_certificate(b""), "");
    }
}
