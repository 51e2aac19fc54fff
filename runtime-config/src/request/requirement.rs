//! Conditions on the driver and the cards: `NVIDIA_REQUIRE_CUDA="cuda>=12.0
//! brand=tesla,driver>=470"`.
//!
//! A blank means or, a comma means and.

use std::{cmp::Ordering, fmt};

use super::{Condition, Operator, Property, RequestError, Requirement, statements::Statement};

const SHAPE: &str = "conditions such as cuda>=12.0 or brand=tesla,driver>=470, of cuda, driver, arch and brand, with \
                     = != < <= > >= (brand: = and != only)";
/// Longest first, so that `>=` is not read as `>`.
const OPERATORS: [(&str, Operator); 6] = [
    (">=", Operator::GreaterOrEqual),
    ("<=", Operator::LessOrEqual),
    ("!=", Operator::NotEqual),
    (">", Operator::Greater),
    ("<", Operator::Less),
    ("=", Operator::Equal),
];

/// A node or card for which a requirement does not hold.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "unsatisfied condition: {condition}, please update your driver to a newer version, or use an earlier cuda container \
     ({variable}; the node has {node})"
)]
pub struct UnsatisfiedRequirement {
    /// The variable that demands it.
    pub variable: String,
    /// The condition that does not hold, as written.
    pub condition: String,
    /// The node's own value.
    pub node: String,
}

/// The platform that the conditions are held against.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Platform<'a> {
    /// The driver's version, `580.159.04`.
    pub driver: &'a str,
    /// The newest CUDA version that it supports, `13.0`.
    pub cuda: &'a str,
    /// One card's compute capability and brand; `None` where no card was asked for: then these
    /// conditions hold.
    pub card: Option<(&'a str, &'a str)>,
}

impl fmt::Display for Platform<'_> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "cuda {}, driver {}", self.cuda, self.driver)?;
        match self.card {
            Some((arch, brand)) => write!(formatter, ", arch {arch}, brand {brand}"),
            None => Ok(()),
        }
    }
}

impl Requirement {
    /// Checks that one of the alternatives holds.
    ///
    /// # Errors
    /// When none does, with the first condition that fails in the last of them.
    pub fn check(&self, platform: &Platform<'_>) -> Result<(), UnsatisfiedRequirement> {
        let mut failed = None;
        for alternative in &self.alternatives {
            match alternative.iter().find(|condition| !condition.holds(platform)) {
                None => return Ok(()),
                Some(condition) => failed = Some(condition),
            }
        }
        let Some(failed) = failed else { return Ok(()) };
        Err(UnsatisfiedRequirement {
            variable: self.variable.clone(),
            condition: failed.to_string(),
            node: platform.to_string(),
        })
    }
}

impl Condition {
    fn holds(&self, platform: &Platform<'_>) -> bool {
        let actual = match (self.property, platform.card) {
            (Property::Cuda, _) => platform.cuda,
            (Property::Driver, _) => platform.driver,
            (Property::Arch, Some((arch, _))) => arch,
            (Property::Brand, Some((_, brand))) => brand,
            (Property::Arch | Property::Brand, None) => return true,
        };
        let order = match self.property {
            Property::Brand if same_brand(actual, &self.value) => Ordering::Equal,
            Property::Brand => Ordering::Less,
            Property::Cuda | Property::Driver | Property::Arch => compare_versions(actual, &self.value),
        };
        match self.operator {
            Operator::Equal => order.is_eq(),
            Operator::NotEqual => order.is_ne(),
            Operator::Less => order.is_lt(),
            Operator::LessOrEqual => order.is_le(),
            Operator::Greater => order.is_gt(),
            Operator::GreaterOrEqual => order.is_ge(),
        }
    }
}

impl fmt::Display for Condition {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let operator = OPERATORS.iter().find(|(_, operator)| *operator == self.operator).map_or("=", |(text, _)| *text);
        write!(formatter, "{}{operator}{}", self.property.name(), self.value)
    }
}

impl Property {
    fn name(self) -> &'static str {
        match self {
            Self::Cuda => "cuda",
            Self::Driver => "driver",
            Self::Arch => "arch",
            Self::Brand => "brand",
        }
    }
}

/// NVML says `NVIDIA RTX`, requirements say `nvidiartx`.
fn same_brand(one: &str, other: &str) -> bool {
    let letters = |brand: &str| {
        brand.chars().filter(char::is_ascii_alphanumeric).map(|c| c.to_ascii_lowercase()).collect::<String>()
    };
    letters(one) == letters(other)
}

/// Part by part; parts that one of them lacks are 0. What is no number compares as 0: a driver's
/// own version only, a requirement's was checked when it was read.
fn compare_versions(one: &str, other: &str) -> Ordering {
    let parts =
        |version: &str| version.split('.').map(|part| part.trim().parse::<u64>().unwrap_or(0)).collect::<Vec<_>>();
    let (one, other) = (parts(one), parts(other));
    let length = one.len().max(other.len());
    let at = |parts: &[u64], position: usize| parts.get(position).copied().unwrap_or(0);
    (0..length)
        .map(|position| at(&one, position).cmp(&at(&other, position)))
        .find(|order| order.is_ne())
        .unwrap_or(Ordering::Equal)
}

/// Reads one variable.
pub(super) fn parse(statement: Statement<'_>) -> Result<Requirement, RequestError> {
    let alternatives = statement
        .value
        .split_ascii_whitespace()
        .map(|alternative| {
            alternative.split(',').filter(|text| !text.is_empty()).map(condition).collect::<Option<Vec<Condition>>>()
        })
        .collect::<Option<Vec<_>>>();
    let alternatives = alternatives.filter(|alternatives| alternatives.iter().all(|conditions| !conditions.is_empty()));
    let alternatives = alternatives.ok_or_else(|| RequestError::invalid(statement, SHAPE))?;
    Ok(Requirement { variable: statement.name.to_owned(), alternatives })
}

/// `cuda>=MAJOR.MINOR` of the `CUDA_VERSION` of an old image.
pub(super) fn of_cuda_version(version: Statement<'_>) -> Result<Requirement, RequestError> {
    let parts: Vec<&str> = version.value.trim().split('.').take(2).collect();
    let value = parts.join(".");
    if !is_version(&value) {
        return Err(RequestError::invalid(version, "a version such as 9.0.176"));
    }
    let condition = Condition { property: Property::Cuda, operator: Operator::GreaterOrEqual, value };
    Ok(Requirement { variable: version.name.to_owned(), alternatives: vec![vec![condition]] })
}

fn condition(text: &str) -> Option<Condition> {
    let start = text.find(['=', '!', '<', '>'])?;
    let (name, rest) = text.split_at_checked(start)?;
    let (operator_text, operator) = OPERATORS.iter().find(|(operator, _)| rest.starts_with(operator))?;
    let value = rest.strip_prefix(operator_text)?;
    let property = [Property::Cuda, Property::Driver, Property::Arch, Property::Brand]
        .into_iter()
        .find(|property| property.name() == name)?;
    let valid = match property {
        Property::Brand => {
            matches!(operator, Operator::Equal | Operator::NotEqual)
                && !value.is_empty()
                && value.chars().all(|c| c.is_ascii_alphanumeric() || c == '-' || c == '_')
        }
        Property::Cuda | Property::Driver | Property::Arch => is_version(value),
    };
    valid.then(|| Condition { property, operator: *operator, value: value.to_owned() })
}

fn is_version(text: &str) -> bool {
    text.split('.').all(|part| part.bytes().all(|byte| byte.is_ascii_digit()) && part.parse::<u64>().is_ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLATFORM: Platform<'static> = Platform { driver: "535.104.05", cuda: "12.2", card: Some(("7.0", "Tesla")) };

    fn read(value: &str) -> Result<Requirement, RequestError> {
        parse(Statement { name: "NVIDIA_REQUIRE_CUDA", value })
    }

    #[test]
    fn conditions_hold_or_not() {
        for (text, holds) in [
            ("cuda>=12.0", true),
            ("cuda>=12.2", true),
            ("cuda>=12.2.0", true),
            ("cuda>=12.8", false),
            ("cuda>=9", true),
            ("cuda=12.2", true),
            ("cuda!=12.2", false),
            ("cuda<12.10", true),
            ("cuda<=12.1", false),
            ("driver>=470,driver<471", false),
            ("driver>=535,driver<536", true),
            ("driver>535.104.5", false),
            ("arch>=7.0", true),
            ("arch>7.0", false),
            ("brand=tesla", true),
            ("brand=TESLA", true),
            ("brand!=tesla", false),
            ("brand=geforce", false),
            ("cuda>=12.8 brand=tesla,driver>=535,driver<536", true),
            ("cuda>=12.8 brand=tesla,driver>=470,driver<471", false),
            ("cuda>=12.8  cuda>=12.0", true),
        ] {
            assert_eq!(read(text).unwrap().check(&PLATFORM).is_ok(), holds, "{text}");
        }
    }

    #[test]
    fn brands_are_compared_without_case_and_blanks() {
        let platform = Platform { card: Some(("8.9", "NVIDIA RTX")), ..PLATFORM };
        assert_eq!(read("brand=nvidiartx").unwrap().check(&platform), Ok(()));
        assert!(read("brand=rtx").unwrap().check(&platform).is_err());
    }

    #[test]
    fn without_a_card_conditions_on_cards_hold() {
        let platform = Platform { card: None, ..PLATFORM };
        assert_eq!(read("arch>=9.0,brand=geforce").unwrap().check(&platform), Ok(()));
        assert!(read("arch>=9.0,cuda>=13").unwrap().check(&platform).is_err());
    }

    #[test]
    fn the_message_is_the_one_that_users_know() {
        let error = read("cuda>=12.8").unwrap().check(&PLATFORM).unwrap_err();
        assert_eq!(
            error.to_string(),
            "unsatisfied condition: cuda>=12.8, please update your driver to a newer version, or use an earlier cuda \
             container (NVIDIA_REQUIRE_CUDA; the node has cuda 12.2, driver 535.104.05, arch 7.0, brand Tesla)"
        );
    }

    #[test]
    fn what_is_no_condition_is_refused() {
        for text in [
            "cuda",
            "cuda>=",
            ">=12",
            "cuda>=12.x",
            "cuda=>12",
            "cuda>==12",
            "vram>=12",
            "brand>=tesla",
            "brand=",
            ",",
            "cuda>=12..1",
            "cuda >= 12",
            "cuda>=99999999999999999999",
            "brand=a=b",
        ] {
            assert!(matches!(read(text), Err(RequestError::Invalid { .. })), "{text}");
        }
    }

    #[test]
    fn an_old_images_version_becomes_a_condition() {
        let requirement = of_cuda_version(Statement { name: "CUDA_VERSION", value: "9.0.176" }).unwrap();
        assert_eq!(requirement.alternatives[0][0].to_string(), "cuda>=9.0");
        assert!(of_cuda_version(Statement { name: "CUDA_VERSION", value: "nine" }).is_err());
    }
}
