//! The cards that a container asks for, when up to three sources name some: native, foreign, and
//! what is visible.

use super::{
    CardRequest, DeviceSelector, RequestError,
    dialect::{
        Foreign, ForeignCards,
        native::{Native, NativeCards},
        nvidia::{self, Namer, Visible, VisibleCards},
    },
    error::AsWritten,
};

/// The cards of a request.
#[derive(Debug, Clone)]
pub(super) struct Cards {
    pub(super) cards: CardRequest,
    pub(super) whole_cards: CardRequest,
    pub(super) within: Option<CardRequest>,
    /// Named by environment variables alone, which a node may not accept.
    pub(super) by_environment: bool,
    pub(super) warnings: Vec<String>,
}

impl Cards {
    fn new(cards: CardRequest, by_environment: bool) -> Self {
        Self { cards, whole_cards: CardRequest::None, within: None, by_environment, warnings: Vec::new() }
    }
}

fn is_environment(namer: Namer) -> bool {
    match namer {
        Namer::Environment | Namer::LegacyImage => true,
        Namer::Spec | Namer::EnvironmentWithHook => false,
    }
}

/// `None`: no card and no driver file is asked for.
pub(super) fn choose(
    native: Option<&Native>,
    foreign: Option<&Foreign>,
    visible: &Visible,
) -> Result<Option<Cards>, RequestError> {
    match (native, foreign) {
        (native, Some(foreign)) => of_foreign(native, foreign, visible),
        (Some(native), None) => of_native(native, visible),
        (None, None) => Ok(visible.cards.request().map(|cards| Cards::new(cards, is_environment(visible.namer)))),
    }
}

fn of_native(native: &Native, visible: &Visible) -> Result<Option<Cards>, RequestError> {
    let Some(asking) = &native.asks else {
        // It only describes how; the cards are somebody else's to name.
        return Ok(visible.cards.request().map(|cards| Cards::new(cards, is_environment(visible.namer))));
    };
    let by_environment = !asking.by_annotation;
    match &native.cards {
        Some((NativeCards::Void, _)) => Ok(None),
        Some((NativeCards::These(named), said)) => {
            let mut cards = Cards::new(named.clone(), by_environment && is_environment(visible.namer));
            cards.within = within(named, said, visible)?;
            Ok(Some(cards))
        }
        None => {
            if let Some(particular) = visible.cards.particular() {
                return Ok(Some(Cards::new(particular, by_environment && is_environment(visible.namer))));
            }
            // NVIDIA's base images say `all` without anybody having meant it: only a client's `all`
            // counts.
            let meant = visible.cards == VisibleCards::All && !is_environment(visible.namer);
            let cards = if meant { CardRequest::All } else { CardRequest::Count(1) };
            Ok(Some(Cards::new(cards, by_environment && !meant)))
        }
    }
}

fn of_foreign(native: Option<&Native>, foreign: &Foreign, visible: &Visible) -> Result<Option<Cards>, RequestError> {
    let mut cards = joined_cards(native, foreign, visible)?;
    if let Some(cards) = &mut cards {
        cards.by_environment &= !foreign.by_annotation;
    }
    Ok(cards)
}

fn joined_cards(native: Option<&Native>, foreign: &Foreign, visible: &Visible) -> Result<Option<Cards>, RequestError> {
    let named = native.and_then(|native| native.cards.as_ref());
    let Some((named, said)) = named else { return foreign_cards(foreign, visible) };
    match &foreign.cards {
        ForeignCards::Listed(_, foreign_said) | ForeignCards::Shared(_, foreign_said) => {
            let reason = "both name cards; leave the choice to one of them";
            Err(RequestError::contradiction(said.clone(), foreign_said.clone(), reason))
        }
        ForeignCards::Visible | ForeignCards::VisibleOr(_) | ForeignCards::Counted(_) => match named {
            NativeCards::Void => Ok(None),
            NativeCards::These(named) => {
                let by_annotation =
                    native.and_then(|native| native.asks.as_ref()).is_some_and(|asks| asks.by_annotation);
                let mut cards = Cards::new(named.clone(), !by_annotation && is_environment(visible.namer));
                cards.within = within(named, said, visible)?;
                Ok(Some(cards))
            }
        },
    }
}

fn foreign_cards(foreign: &Foreign, visible: &Visible) -> Result<Option<Cards>, RequestError> {
    let by_environment = is_environment(visible.namer);
    match (&foreign.cards, &visible.cards) {
        (ForeignCards::Visible, VisibleCards::Unset) => {
            Err(RequestError::NoCards { said: foreign.terms.said.clone(), variable: nvidia::VISIBLE })
        }
        (ForeignCards::VisibleOr(count), VisibleCards::Unset) => {
            Ok(Some(Cards::new(CardRequest::Count(*count), by_environment)))
        }
        // An image's `all` is nobody's choice.
        (ForeignCards::Counted(count), VisibleCards::Unset | VisibleCards::All) if by_environment => {
            Ok(Some(Cards::new(CardRequest::Count(*count), by_environment)))
        }
        (ForeignCards::Visible | ForeignCards::VisibleOr(_) | ForeignCards::Counted(_), cards) => {
            Ok(cards.request().map(|cards| Cards::new(cards, by_environment)))
        }
        (ForeignCards::Listed(listed, said), _) => {
            let request = CardRequest::Devices(listed.clone());
            let mut cards = Cards::new(request.clone(), true);
            if matches!(visible.cards, VisibleCards::Void | VisibleCards::None) {
                let reason = "the cards of the groups must be among those made visible";
                return Err(RequestError::contradiction(said.clone(), visible.said.clone(), reason));
            }
            cards.within = within(&request, said, visible)?;
            if let VisibleCards::Devices(seen) = &visible.cards
                && let Some(extra) =
                    seen.iter().find(|card| matches!(card, DeviceSelector::Index(_)) && !listed.contains(card))
            {
                let reason = format!("card {extra} is made visible, but no group has its limits");
                return Err(RequestError::contradiction(said.clone(), visible.said.clone(), reason));
            }
            cards.by_environment = by_environment;
            Ok(Some(cards))
        }
        (ForeignCards::Shared(shared, said), _) => shared_cards(shared, said, visible).map(Some),
    }
}

fn shared_cards(shared: &[DeviceSelector], said: &AsWritten, visible: &Visible) -> Result<Cards, RequestError> {
    let request = CardRequest::Devices(shared.to_vec());
    // The variable alone names the cards, whatever else is visible.
    let mut cards = Cards::new(request.clone(), true);
    match &visible.cards {
        VisibleCards::Unset | VisibleCards::Void | VisibleCards::None => {}
        VisibleCards::All => {
            cards.warnings.push(format!("{} gives no whole cards beside {said}: name them", visible.said));
        }
        VisibleCards::Present { .. } | VisibleCards::Devices(_) if !is_environment(visible.namer) => {
            cards.within = within(&request, said, visible)?;
            cards.by_environment = false;
        }
        VisibleCards::Present { .. } => {}
        VisibleCards::Devices(seen) => {
            let whole: Vec<DeviceSelector> =
                seen.iter().filter(|card| !shared.iter().any(|known| known.same_text(card))).cloned().collect();
            if !whole.is_empty() {
                cards.whole_cards = CardRequest::Devices(whole);
            }
        }
    }
    Ok(cards)
}

/// Returns the visible cards that confine `cards`: none where no particular cards are visible, or
/// where their text shows that all is well.
fn within(cards: &CardRequest, said: &AsWritten, visible: &Visible) -> Result<Option<CardRequest>, RequestError> {
    let Some(particular) = visible.cards.particular() else { return Ok(None) };
    if let (CardRequest::Devices(named), CardRequest::Devices(seen)) = (cards, &particular) {
        let missing = named.iter().find(|card| !seen.iter().any(|known| known.same_text(card)));
        let Some(missing) = missing else { return Ok(None) };
        let indices = |list: &[DeviceSelector]| list.iter().all(|card| matches!(card, DeviceSelector::Index(_)));
        if indices(named) && indices(seen) {
            let reason = format!("card {missing} is not among those made visible");
            return Err(RequestError::contradiction(said.clone(), visible.said.clone(), reason));
        }
    }
    Ok(Some(particular))
}

impl CardRequest {
    /// Number of cards, where the request says it.
    pub(super) fn count(&self) -> Option<usize> {
        match self {
            Self::None => Some(0),
            Self::All => None,
            Self::Count(count) => usize::try_from(*count).ok(),
            Self::Devices(devices) => Some(devices.len()),
            // A node with MIG devices stands for as many as there are of them.
            Self::PresentNodes { cards, capabilities } => capabilities.is_empty().then_some(cards.len()),
        }
    }

    /// The first MIG device that is named.
    pub(super) fn mig_device(&self) -> Option<String> {
        match self {
            Self::Devices(devices) => devices.iter().find(|device| device.is_mig()).map(ToString::to_string),
            Self::PresentNodes { capabilities, .. } => {
                capabilities.first().map(|minor| format!("the MIG device of /dev/nvidia-caps/nvidia-cap{minor}"))
            }
            Self::None | Self::All | Self::Count(_) => None,
        }
    }
}
