//! Any environment and annotations: a request or a one-line refusal.
#![no_main]

use libfuzzer_sys::fuzz_target;
use runtime_config::{
    Config,
    request::{ContainerRequest, Source, parse},
};

// One statement a line; lines that begin with `@` are annotations.
fuzz_target!(|text: &str| {
    let mut source = Source::default();
    for line in text.lines() {
        match line.strip_prefix('@').and_then(|annotation| annotation.split_once('=')) {
            Some((name, value)) => {
                source.annotations.insert(name.to_owned(), value.to_owned());
            }
            None => source.env.push(line.to_owned()),
        }
    }
    let config = Config { allow_isolation_none: true, legacy_images: true, ..Config::default() };
    match parse(&source, &config) {
        Ok(ContainerRequest::Gpu(request)) => assert!(request.asked.iter().all(|said| !said.contains('\n'))),
        Ok(ContainerRequest::Claims(claims)) => assert!(!claims.requests.is_empty()),
        Ok(ContainerRequest::None { .. } | ContainerRequest::WithoutClaim { .. }) => {}
        Err(error) => assert!(!error.to_string().contains('\n')),
    }
});
