//! Properties that a simulated card of a well-known model claims.

/// Brand and compute capability of a model.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Traits {
    /// As NVML's brand, the way `NVIDIA_REQUIRE_*` compares it.
    pub(super) brand: &'static str,
    /// `(major, minor)`.
    pub(super) compute_capability: (u32, u32),
}

/// A word of the model's name, and what it means. The first row whose word occurs decides, so
/// longer ones come first. Compute capabilities: NVIDIA's "CUDA GPU Compute Capability" list.
/// Brands: what NVML answers for such a card; data-centre cards since Ampere are `Nvidia`, not
/// `Tesla`.
const MODELS: &[(&str, Traits)] = &[
    ("GB300", Traits { brand: "Nvidia", compute_capability: (10, 3) }),
    ("B300", Traits { brand: "Nvidia", compute_capability: (10, 3) }),
    ("GB200", Traits { brand: "Nvidia", compute_capability: (10, 0) }),
    ("B200", Traits { brand: "Nvidia", compute_capability: (10, 0) }),
    ("B100", Traits { brand: "Nvidia", compute_capability: (10, 0) }),
    ("GH200", Traits { brand: "Nvidia", compute_capability: (9, 0) }),
    ("H200", Traits { brand: "Nvidia", compute_capability: (9, 0) }),
    ("H100", Traits { brand: "Nvidia", compute_capability: (9, 0) }),
    ("H800", Traits { brand: "Nvidia", compute_capability: (9, 0) }),
    ("H20", Traits { brand: "Nvidia", compute_capability: (9, 0) }),
    ("L40", Traits { brand: "Nvidia", compute_capability: (8, 9) }),
    ("L20", Traits { brand: "Nvidia", compute_capability: (8, 9) }),
    ("L4", Traits { brand: "Nvidia", compute_capability: (8, 9) }),
    ("A800", Traits { brand: "Nvidia", compute_capability: (8, 0) }),
    ("A100", Traits { brand: "Nvidia", compute_capability: (8, 0) }),
    ("A30", Traits { brand: "Nvidia", compute_capability: (8, 0) }),
    ("A40", Traits { brand: "Nvidia", compute_capability: (8, 6) }),
    ("A16", Traits { brand: "Nvidia", compute_capability: (8, 6) }),
    ("A10", Traits { brand: "Nvidia", compute_capability: (8, 6) }),
    ("A2", Traits { brand: "Nvidia", compute_capability: (8, 6) }),
    ("RTX 6000 Ada", Traits { brand: "NvidiaRTX", compute_capability: (8, 9) }),
    ("RTX A", Traits { brand: "NvidiaRTX", compute_capability: (8, 6) }),
    ("RTX 50", Traits { brand: "GeForce", compute_capability: (12, 0) }),
    ("RTX 40", Traits { brand: "GeForce", compute_capability: (8, 9) }),
    ("RTX 30", Traits { brand: "GeForce", compute_capability: (8, 6) }),
    ("RTX 20", Traits { brand: "GeForce", compute_capability: (7, 5) }),
    ("T4", Traits { brand: "Tesla", compute_capability: (7, 5) }),
    ("V100", Traits { brand: "Tesla", compute_capability: (7, 0) }),
    ("P100", Traits { brand: "Tesla", compute_capability: (6, 0) }),
    ("P40", Traits { brand: "Tesla", compute_capability: (6, 1) }),
    ("P4", Traits { brand: "Tesla", compute_capability: (6, 1) }),
];

/// Traits of a model that the table does not have: the oldest that current drivers serve.
const UNKNOWN: Traits = Traits { brand: "Nvidia", compute_capability: (7, 5) };

/// Brand and compute capability of a card of this model.
pub(super) fn traits_of(model: &str) -> Traits {
    MODELS.iter().find(|(word, _)| contains_word(model, word)).map_or(UNKNOWN, |(_, traits)| *traits)
}

/// `word` in `model`, not as a part of a longer model number: `A10` is not in `A100`, `L4` not in
/// `L40`, and `RTX 30` is in `RTX 3090` because a series ends in what varies.
fn contains_word(model: &str, word: &str) -> bool {
    let series = word.contains(' ');
    model.match_indices(word).any(|(start, _)| {
        let before = model[..start].chars().next_back();
        let after = model[start + word.len()..].chars().next();
        let alone = |neighbour: Option<char>| neighbour.is_none_or(|c| !c.is_ascii_alphanumeric());
        alone(before) && (series || after.is_none_or(|c| !c.is_ascii_digit()))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn well_known_models_are_recognised() {
        for (model, brand, capability) in [
            ("Tesla V100-PCIE-32GB", "Tesla", (7, 0)),
            ("Tesla T4", "Tesla", (7, 5)),
            ("NVIDIA A10", "Nvidia", (8, 6)),
            ("NVIDIA A100-SXM4-80GB", "Nvidia", (8, 0)),
            ("NVIDIA L4", "Nvidia", (8, 9)),
            ("NVIDIA L40S", "Nvidia", (8, 9)),
            ("NVIDIA H200", "Nvidia", (9, 0)),
            ("NVIDIA H20", "Nvidia", (9, 0)),
            ("NVIDIA H100 80GB HBM3", "Nvidia", (9, 0)),
            ("NVIDIA GeForce RTX 3090", "GeForce", (8, 6)),
            ("NVIDIA RTX A6000", "NvidiaRTX", (8, 6)),
            ("NVIDIA B200", "Nvidia", (10, 0)),
            ("Tesla P40", "Tesla", (6, 1)),
            ("Something else", "Nvidia", (7, 5)),
            ("", "Nvidia", (7, 5)),
        ] {
            let traits = traits_of(model);
            assert_eq!((traits.brand, traits.compute_capability), (brand, capability), "{model}");
        }
    }

    #[test]
    fn no_row_is_hidden_by_an_earlier_one() {
        for (word, traits) in MODELS {
            assert_eq!(traits_of(word), *traits, "{word}");
        }
    }
}
