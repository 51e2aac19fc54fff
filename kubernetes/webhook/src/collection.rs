//! Collection of templates that nobody names any more.

use std::{collections::BTreeMap, time::Duration};

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::resource::v1::ResourceClaimTemplate;

use crate::api::{Api, ApiError, CONFLICT, MARKS, NOT_FOUND, unused_for};

/// Shortest and longest pause between two looks.
const SHORTEST_PAUSE: SignedDuration = SignedDuration::from_secs(1);
const LONGEST_PAUSE: SignedDuration = SignedDuration::from_hours(1);

/// Deletes templates that no pod of their namespace has named for `lifetime`, for ever.
pub(crate) async fn run(api: Api, lifetime: SignedDuration) {
    let pause = (lifetime / MARKS).clamp(SHORTEST_PAUSE, LONGEST_PAUSE);
    let pause = Duration::try_from(pause).unwrap_or(Duration::from_secs(1));
    loop {
        tokio::time::sleep(pause).await;
        if let Err(error) = collect(&api, lifetime).await {
            tracing::warn!(error = base::error_chain(&error), "templates are collected later");
        }
    }
}

/// Looks at each template once. Pods are listed only where a template may be out of use.
async fn collect(api: &Api, lifetime: SignedDuration) -> Result<(), ApiError> {
    let now = Timestamp::now();
    let mut in_question: BTreeMap<String, Vec<ResourceClaimTemplate>> = BTreeMap::new();
    for template in api.managed_templates().await? {
        if unused_for(&template, now) >= lifetime / MARKS {
            in_question.entry(template.metadata.namespace.clone().unwrap_or_default()).or_default().push(template);
        }
    }
    for (namespace, templates) in in_question {
        if let Err(error) = collect_in(api, &namespace, &templates, lifetime, now).await {
            tracing::warn!(namespace, error = base::error_chain(&error), "templates are collected later");
        }
    }
    Ok(())
}

async fn collect_in(
    api: &Api,
    namespace: &str,
    templates: &[ResourceClaimTemplate],
    lifetime: SignedDuration,
    now: Timestamp,
) -> Result<(), ApiError> {
    let in_use = api.templates_in_use(namespace).await?;
    for template in templates {
        let name = template.metadata.name.as_deref().unwrap_or_default();
        let done = if in_use.contains(name) {
            api.mark_used(namespace, name, now).await
        } else if unused_for(template, now) >= lifetime + lifetime / MARKS {
            tracing::info!(namespace, template = name, "no pod names a template any more: it goes");
            api.delete_template(template).await
        } else {
            Ok(())
        };
        match done {
            // Somebody else has deleted it, or has just begun to use it.
            Err(error) if error.is(NOT_FOUND) || error.is(CONFLICT) => {}
            done => done?,
        }
    }
    Ok(())
}
