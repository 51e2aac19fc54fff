//! Expressions that choose cards, evaluated as the scheduler does.

use std::{
    cell::RefCell,
    collections::{BTreeMap, HashMap},
    rc::Rc,
};

use k8s_openapi::api::resource::v1::DeviceAttribute;
use kube_cel::{
    KubeCelExt,
    cel::{Context, Program, Value},
};
use kubernetes_api::names::DRIVER;

use crate::inventory::Card;

/// The outcome of an expression on a card.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Outcome {
    Chosen,
    NotChosen,
    /// It cannot be evaluated here, and perhaps not by the scheduler either.
    Unknown(String),
}

/// Compiled expressions.
#[derive(Default)]
pub(crate) struct Selectors {
    compiled: RefCell<HashMap<String, Rc<Result<Program, String>>>>,
}

impl std::fmt::Debug for Selectors {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_list().entries(self.compiled.borrow().keys()).finish()
    }
}

impl Selectors {
    /// Evaluates an expression on a card.
    pub(crate) fn evaluate(&self, expression: &str, card: &Card) -> Outcome {
        let program = self.program(expression);
        let program = match &*program {
            Ok(program) => program,
            Err(reason) => return Outcome::Unknown(reason.clone()),
        };
        let mut context = Context::default().with_all();
        let device = match device(card, &context) {
            Ok(device) => device,
            Err(reason) => return Outcome::Unknown(reason),
        };
        context.add_variable_from_value("device", device);
        match program.execute(&context) {
            Ok(Value::Bool(true)) => Outcome::Chosen,
            Ok(Value::Bool(false)) => Outcome::NotChosen,
            Ok(_) => Outcome::Unknown("its value is neither true nor false".to_owned()),
            Err(error) => Outcome::Unknown(error.to_string()),
        }
    }

    fn program(&self, expression: &str) -> Rc<Result<Program, String>> {
        let mut compiled = self.compiled.borrow_mut();
        let compile = || Program::compile(expression).map_err(|error| error.to_string());
        Rc::clone(compiled.entry(expression.to_owned()).or_insert_with(|| Rc::new(compile())))
    }
}

/// The variable `device`.
fn device(card: &Card, context: &Context<'_>) -> Result<Value, String> {
    let mut attributes = domains(&card.attributes, |attribute| value(attribute, context))?;
    let mut capacity = domains(&card.published, |capacity| function("quantity", &capacity.value.0, context))?;
    // Those of the driver are there, if only empty.
    for domains in [&mut attributes, &mut capacity] {
        domains.entry(DRIVER.to_owned()).or_default();
    }
    let domains = |all: HashMap<String, HashMap<String, Value>>| Value::from(all);
    Ok(Value::from(HashMap::from([
        ("driver".to_owned(), Value::from(DRIVER)),
        ("allowMultipleAllocations".to_owned(), Value::from(card.is_shared)),
        ("attributes".to_owned(), domains(attributes)),
        ("capacity".to_owned(), domains(capacity)),
    ])))
}

/// Sorts by domain what is named `domain/name`, or `name` of the driver's own.
fn domains<T>(
    named: &BTreeMap<String, T>,
    value: impl Fn(&T) -> Result<Value, String>,
) -> Result<HashMap<String, HashMap<String, Value>>, String> {
    let mut domains: HashMap<String, HashMap<String, Value>> = HashMap::new();
    for (name, one) in named {
        let (domain, name) = name.split_once('/').unwrap_or((DRIVER, name));
        domains.entry(domain.to_owned()).or_default().insert(name.to_owned(), value(one)?);
    }
    Ok(domains)
}

fn value(attribute: &DeviceAttribute, context: &Context<'_>) -> Result<Value, String> {
    let versions = |versions: &Vec<String>| {
        let versions: Result<Vec<_>, _> = versions.iter().map(|version| function("semver", version, context)).collect();
        versions.map(Value::from)
    };
    match attribute {
        DeviceAttribute { string: Some(text), .. } => Ok(Value::from(text.clone())),
        DeviceAttribute { bool: Some(value), .. } => Ok(Value::from(*value)),
        DeviceAttribute { int: Some(number), .. } => Ok(Value::from(*number)),
        DeviceAttribute { version: Some(version), .. } => function("semver", version, context),
        DeviceAttribute { strings: Some(texts), .. } => Ok(Value::from(texts.clone())),
        DeviceAttribute { bools: Some(values), .. } => Ok(Value::from(values.clone())),
        DeviceAttribute { ints: Some(numbers), .. } => Ok(Value::from(numbers.clone())),
        DeviceAttribute { versions: Some(all), .. } => versions(all),
        _ => Err("an attribute is of a kind that is not known here".to_owned()),
    }
}

/// Returns the value of `name("text")`: quantities and versions are made by their functions alone.
fn function(name: &str, text: &str, context: &Context<'_>) -> Result<Value, String> {
    let program = Program::compile(&format!("{name}({text:?})")).map_err(|error| error.to_string())?;
    program.execute(context).map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{fixtures::slice, inventory::Inventory};

    fn evaluate(expression: &str) -> Outcome {
        let inventory = Inventory::new(&[slice("n1", &["gpu-0"])], &[], &[]);
        Selectors::default().evaluate(expression, &inventory.cards[0])
    }

    #[test]
    fn expressions_of_examples_choose_cards() {
        let attributes = r#"device.attributes["gpu.egpu.io"]"#;
        let capacity = r#"device.capacity["gpu.egpu.io"]"#;
        for (expression, chosen) in [
            (r#"device.driver == "gpu.egpu.io""#.to_owned(), true),
            (r#"device.driver == "gpu.nvidia.com""#.to_owned(), false),
            (format!(r#"{attributes}.policy == "fixed""#), true),
            (format!(r#"{attributes}["policy"] == 'weighted'"#), false),
            (format!(r#"{attributes}.policy in ["weighted", "fixed"]"#), true),
            (format!(r#"{attributes}.productName.startsWith("NVIDIA H200")"#), false),
            (format!(r#"{attributes}.productName.matches("H[12]00")"#), true),
            (format!(r#"{attributes}.productName.lowerAscii().contains("h100")"#), true),
            (format!(r#"{capacity}.memory.compareTo(quantity("24Gi")) >= 0"#), true),
            (format!(r#"{capacity}.memory.isGreaterThan(quantity("80Gi"))"#), false),
            (format!(r#"{attributes}.driverVersion.isGreaterThan(semver("570.0.0"))"#), true),
            (format!(r#"{attributes}.index == 0 && {attributes}.simulated"#), true),
            (r#"device.driver == "x" && device.attributes["x"].y == 1"#.to_owned(), false),
            ("device.allowMultipleAllocations".to_owned(), true),
            (format!(r#"has({attributes}.nothing)"#), false),
            (format!(r#"!("nothing" in {attributes}) || {attributes}.nothing"#), true),
            (format!(r#"{attributes}.policy != "fixed" ? true : {attributes}.index < 4"#), true),
        ] {
            let expected = if chosen { Outcome::Chosen } else { Outcome::NotChosen };
            assert_eq!(evaluate(&expression), expected, "{expression}");
        }
    }

    #[test]
    fn what_cannot_be_evaluated_is_told() {
        for (expression, told) in [
            (r#"device.attributes["gpu.egpu.io"].gone == "x""#, "gone"),
            (r#"device.attributes["other.io"].gone"#, "other.io"),
            ("device.driver ==", "yntax"),
            ("1 + 1", "neither true nor false"),
            ("", ""),
            ("unheardOf(device)", "unheardOf"),
        ] {
            let Outcome::Unknown(reason) = evaluate(expression) else { panic!("{expression}") };
            assert!(reason.contains(told), "{expression}: {reason}");
        }
    }
}
