//! The steps from a spec to one request.
//!
//! Who speaks (native, one foreign language, NVIDIA) -> their terms joined -> which cards -> what
//! share -> leave to have it.

use schedule::policy::rules;

use super::{
    CardPolicy, CardRequest, ComputeShare, ContainerRequest, Dialect, GpuRequest, Isolation, PerCard, RequestError,
    Share, Source,
    cards::{self, Cards},
    claim,
    dialect::{
        self, Foreign, alibaba_egpu, is_annotation_of_a_request, is_of_a_request, native,
        native::Native,
        nvidia,
        nvidia::{Namer, Visible},
    },
    error::AsWritten,
    statements::Statements,
    terms::Terms,
};
use crate::{
    config::{Config, WholeCards},
    request::DriverCapabilities,
    units::{Bytes, Weight},
};

/// Names and values of all variables and annotations that ask for something, in bytes. NVIDIA's
/// images have some 4000.
const LONGEST_REQUEST: usize = 64 << 10;

/// Parses the request of one container.
///
/// # Errors
/// When something that was said is malformed, out of range, contradictory, or not allowed on this
/// node. Nothing is reserved by then.
pub fn parse(source: &Source, config: &Config) -> Result<ContainerRequest, RequestError> {
    let mut warnings = Vec::new();
    if source.is_sandbox {
        return Ok(ContainerRequest::None { warnings });
    }
    let spoken_env = Statements::from_env(&source.env);
    let annotations = Statements::from_annotations(&source.annotations);
    require_short(&spoken_env, &annotations)?;
    if let Some(claims) = claim::parse(source, (&spoken_env, &annotations), config)? {
        return Ok(ContainerRequest::Claims(Box::new(claims)));
    }
    if claim::is_required(source, config) {
        let asked = said_about_gpus(&spoken_env, &annotations);
        return Ok(if asked.is_empty() {
            ContainerRequest::None { warnings }
        } else {
            ContainerRequest::WithoutClaim { asked, why: claim::REQUIRED.to_owned() }
        });
    }
    let env = if config.accept_env {
        spoken_env
    } else {
        if let Some(name) = spoken_env.names().find(|name| is_of_a_request(name)) {
            warnings
                .push(format!("{name} and all other variables are ignored: accept_env is off in the configuration"));
        }
        Statements::default()
    };
    if !config.accept_nvidia_visible_devices_as_volume_mounts && !source.volume_mount_devices.is_empty() {
        let key = "accept_nvidia_visible_devices_as_volume_mounts";
        warnings.push(format!(
            "mounts at /var/run/nvidia-container-devices are ignored: {key} is off in the configuration"
        ));
    }
    let native = native::parse(&env, &annotations)?;
    if let Some(statement) = native::isolation_none(&env, &annotations)
        && !config.allow_isolation_none
    {
        return Err(RequestError::NotAllowed { said: statement.into(), key: "allow_isolation_none = true" });
    }
    let foreign = dialect::foreign(&env, &annotations, config)?;
    if foreign.as_ref().is_none_or(|foreign| foreign.dialect != Dialect::AlibabaEgpu) {
        warnings.extend(alibaba_egpu::without_switch(&env));
    }
    let visible = nvidia::visible(source, &env, config)?;
    let Some(cards) = cards::choose(native.as_ref(), foreign.as_ref(), &visible)? else {
        if let Some(said) = native.map(|native| native.terms.said).or(foreign.map(|foreign| foreign.terms.said)) {
            warnings.push(format!("{said} has no effect: no card is asked for"));
        }
        return Ok(ContainerRequest::None { warnings });
    };
    let is_privileged = source.privileges.administers_host();
    let accepted = config.accept_nvidia_visible_devices_envvar_when_unprivileged || is_privileged;
    if cards.by_environment && !accepted {
        let key = "accept_nvidia_visible_devices_envvar_when_unprivileged";
        warnings.push(format!("variables that ask for cards are ignored: {key} is off in the configuration"));
        return Ok(ContainerRequest::None { warnings });
    }
    let spoken = Spoken { source, env, annotations, config, visible };
    spoken.request(native, foreign, cards, warnings).map(|request| ContainerRequest::Gpu(Box::new(request)))
}

/// The input of the last step.
struct Spoken<'a> {
    source: &'a Source,
    env: Statements<'a>,
    annotations: Statements<'a>,
    config: &'a Config,
    visible: Visible,
}

impl Spoken<'_> {
    fn request(
        &self,
        native: Option<Native>,
        foreign: Option<Foreign>,
        cards: Cards,
        mut warnings: Vec<String>,
    ) -> Result<GpuRequest, RequestError> {
        let (source, env, namer) = (self.source, &self.env, self.visible.namer);
        let driver_capabilities = nvidia::capabilities(source, env, namer, self.config)?;
        let dialect = match (&foreign, &native) {
            (Some(foreign), _) => foreign.dialect,
            (None, Some(_)) => Dialect::Native,
            (None, None) => Dialect::Nvidia,
        };
        let by_visible_alone = foreign.is_none() && native.as_ref().is_none_or(|native| native.asks.is_none());
        let asks_share = foreign.is_some() || native.as_ref().is_some_and(|native| native.asks_share);
        let mut terms = self.terms(native, foreign)?;
        let share = self.share(&mut terms, &cards, dialect, asks_share, driver_capabilities)?;
        let policy = match &share {
            Share::Part { compute, .. } => policy(&terms, compute, self.config)?,
            Share::Exclusive | Share::Monitor => None,
        };
        self.refuse_what_cannot_hold(&share, &terms, &cards, &mut warnings)?;
        let perhaps_the_images = by_visible_alone && namer == Namer::Environment && share != Share::Monitor;
        let visible_devices_alone = if perhaps_the_images { nvidia::visible_devices(env) } else { Vec::new() };
        let pinned_memory = self.pinned_memory(&share, &mut terms);
        let names_mig = cards.cards.mig_device().is_some();
        let requirements = nvidia::requirements(source, env, namer, self.config)?;
        let extras = nvidia::extras(source, env, names_mig)?;
        warnings.extend(cards.warnings);
        warnings.append(&mut terms.warnings);
        Ok(GpuRequest {
            dialect: dialect.into(),
            cards: cards.cards,
            whole_cards: cards.whole_cards,
            within: cards.within,
            share,
            policy,
            placement: terms.placement,
            group: terms.group,
            pod: None,
            priority: terms.priority,
            pinned_memory,
            over_memory: terms.over_memory,
            oom_script: terms.oom_script.map(|(script, _)| script),
            live_update: terms.live_update,
            driver_capabilities,
            requirements,
            extras,
            asked: self.asked(),
            visible_devices_alone,
            warnings,
        })
    }

    fn terms(&self, native: Option<Native>, foreign: Option<Foreign>) -> Result<Terms, RequestError> {
        let terms = match (native, foreign) {
            (None, None) => Terms::new(self.visible.said.clone()),
            (Some(native), None) => native.terms,
            (None, Some(foreign)) => foreign.terms,
            (Some(native), Some(foreign)) => native.terms.join(foreign.terms)?,
        };
        if let Some((_, said)) = &terms.oom_script
            && terms.over_memory == super::OverMemory::Deny
        {
            return Err(RequestError::invalid(said.clone(), "accompanied by EGPU_OOM=kill: it runs before the kill"));
        }
        Ok(terms)
    }

    fn share(
        &self,
        terms: &mut Terms,
        cards: &Cards,
        dialect: Dialect,
        asks_share: bool,
        capabilities: DriverCapabilities,
    ) -> Result<Share, RequestError> {
        if cards.cards == CardRequest::None && cards.whole_cards == CardRequest::None {
            if asks_share && dialect == Dialect::Native {
                return Err(RequestError::contradiction(
                    terms.said.clone(),
                    self.visible_or_named(),
                    "limits need a card",
                ));
            }
            if asks_share {
                terms.warnings.push(format!("{} has no effect: no card is asked for", terms.said));
            }
            return Ok(Share::Monitor);
        }
        if !asks_share {
            if capabilities == DriverCapabilities::UTILITY {
                return Ok(Share::Monitor);
            }
            let default_share = self.config.default_share;
            if self.config.share_by_default && cards.cards.mig_device().is_none() {
                terms.memory = PerCard::same(vec![default_share.memory]);
                terms.compute = PerCard::same(default_share.compute);
                terms.warnings.push("the cards are shared: share_by_default is on in the configuration".to_owned());
            } else {
                return Ok(Share::Exclusive);
            }
        }
        let compute = terms.compute.map(|share| match (dialect, share) {
            // A cGPU container that sets no weight has one slice.
            (Dialect::AlibabaCgpu, ComputeShare::Unlimited) => ComputeShare::Weight(Weight::ONE),
            (_, share) => *share,
        });
        let isolation = terms.isolation.unwrap_or_default();
        if let Some(count) = cards.cards.count() {
            fits(&terms.memory, count, terms.memory_said.as_ref().unwrap_or(&terms.said))?;
            fits(&compute, count, terms.compute_said.as_ref().unwrap_or(&terms.said))?;
        }
        Ok(Share::Part { memory: terms.memory.clone(), compute, isolation })
    }

    /// Returns the limit of pinned memory; only a mediator holds a container to it.
    fn pinned_memory(&self, share: &Share, terms: &mut Terms) -> Option<Bytes> {
        let is_mediated = match share {
            Share::Part { .. } => true,
            Share::Exclusive => self.config.whole_cards == WholeCards::Mediated,
            Share::Monitor => false,
        };
        let asked = terms.pinned_memory?;
        if !is_mediated {
            let warning = format!(
                "{asked} of pinned memory asked, without effect: the container's driver calls are not mediated"
            );
            terms.warnings.push(warning);
            return None;
        }
        Some(asked)
    }

    /// Returns the statement that said that there is no card.
    fn visible_or_named(&self) -> AsWritten {
        let named = ["egpu.io/devices", "EGPU_DEVICES"]
            .into_iter()
            .find_map(|name| self.annotations.any(name).or_else(|| self.env.any(name)));
        named.map_or_else(|| self.visible.said.clone(), Into::into)
    }

    fn refuse_what_cannot_hold(
        &self,
        share: &Share,
        terms: &Terms,
        cards: &Cards,
        warnings: &mut Vec<String>,
    ) -> Result<(), RequestError> {
        let Share::Part { isolation, .. } = share else { return Ok(()) };
        if let Some(device) = cards.cards.mig_device().or_else(|| cards.whole_cards.mig_device()) {
            return Err(RequestError::MigWithQuota { said: terms.said.clone(), device });
        }
        let privileges = self.source.privileges.against_a_quota();
        if privileges.is_empty() || *isolation == Isolation::None {
            return Ok(());
        }
        if !self.config.allow_privileged_quota {
            return Err(RequestError::Privileged { said: terms.said.clone(), privileges });
        }
        warnings.push(format!("the quota is advice: the container has {}", privileges.join(" and ")));
        Ok(())
    }

    fn asked(&self) -> Vec<String> {
        let mut asked = said_about_gpus(&self.env, &self.annotations);
        // What named the cards without being a variable of a request.
        if matches!(self.visible.namer, Namer::Spec | Namer::LegacyImage) {
            asked.push(self.visible.said.to_string());
        }
        asked
    }
}

/// The policy that the card must have.
fn policy(terms: &Terms, compute: &PerCard<ComputeShare>, config: &Config) -> Result<Option<CardPolicy>, RequestError> {
    let caps = compute.values().any(|share| matches!(share, ComputeShare::Cap { .. }));
    let heaviest = compute.values().filter_map(|share| match share {
        ComputeShare::Weight(weight) => Some(*weight),
        _ => None,
    });
    let heaviest = heaviest.max();
    let Some((policy, said)) = &terms.policy else {
        return Ok(if caps { Some(CardPolicy::Fixed) } else { terms.policy_of_weights });
    };
    let compute_said = terms.compute_said.as_ref().unwrap_or(&terms.said);
    if caps && !rules(*policy).takes_caps {
        let reason = "a percentage is a hard cap, which only the policy fixed holds";
        return Err(RequestError::contradiction(said.clone(), compute_said.clone(), reason));
    }
    if let Some(heaviest) = heaviest.filter(|weight| *weight > Weight::ONE) {
        if !rules(*policy).takes_weights {
            let takes_weights = CardPolicy::listed("and", |policy| rules(policy).takes_weights);
            let reason = format!("weights have a meaning under the policies {takes_weights} only");
            return Err(RequestError::contradiction(said.clone(), compute_said.clone(), reason));
        }
        if rules(*policy).counts_slices && heaviest.get() > config.max_inst {
            let reason =
                format!("under the policy {policy} a weight counts slices, of which a card has {}", config.max_inst);
            return Err(RequestError::contradiction(said.clone(), compute_said.clone(), reason));
        }
    }
    Ok(Some(*policy))
}

fn fits<T>(values: &PerCard<T>, cards: usize, said: &AsWritten) -> Result<(), RequestError> {
    values
        .for_cards(cards)
        .map(|_| ())
        .map_err(|error| RequestError::invalid(said.clone(), format!("as many values as there are cards: {error}")))
}

/// Statements of a spec about GPUs, `NAME=value` each, whether or not they make a valid request:
/// for the log of one that is refused.
pub fn asked(source: &Source) -> Vec<String> {
    said_about_gpus(&Statements::from_env(&source.env), &Statements::from_annotations(&source.annotations))
}

fn said_about_gpus(env: &Statements<'_>, annotations: &Statements<'_>) -> Vec<String> {
    let mut asked: Vec<String> = Vec::new();
    for (statements, is_env) in [(annotations, false), (env, true)] {
        for name in statements.names() {
            if (is_env && is_of_a_request(name)) || (!is_env && is_annotation_of_a_request(name, annotations)) {
                asked.extend(statements.all(name).map(|statement| AsWritten::from(statement).to_string()));
            }
        }
    }
    asked
}

/// Refuses what nobody means: a request is kept in the ledger, which all containers of the node
/// share, and what it takes to read it is the host's time.
fn require_short(env: &Statements<'_>, annotations: &Statements<'_>) -> Result<(), RequestError> {
    let mut length = 0usize;
    let annotated = annotations.names().filter(|name| is_annotation_of_a_request(name, annotations));
    let annotated = annotated.flat_map(|name| annotations.all(name));
    let in_env = env.names().filter(|name| is_of_a_request(name)).flat_map(|name| env.all(name));
    for statement in annotated.chain(in_env) {
        length = length.saturating_add(statement.name.len()).saturating_add(statement.value.len());
        if length > LONGEST_REQUEST {
            let accepted = format!("shorter: all that is said about GPUs may have {LONGEST_REQUEST} bytes");
            return Err(RequestError::invalid(statement, accepted));
        }
    }
    Ok(())
}
