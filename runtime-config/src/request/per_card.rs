//! One value for each card that a container gets.

use serde::{Deserialize, Serialize};

/// Values for the first, second, ... card of a request, and perhaps one for all that follow.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PerCard<T> {
    listed: Vec<T>,
    /// The value for the cards after those; without it there must be exactly as many cards as are
    /// listed.
    rest: Option<T>,
}

/// A list does not fit the number of cards.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{listed} values are listed for {cards} {}", if *cards == 1 { "card" } else { "cards" })]
pub struct CardCountError {
    /// Length of the list.
    pub listed: usize,
    /// Cards that the container gets.
    pub cards: usize,
}

impl<T> PerCard<T> {
    /// List with one value for every card.
    pub fn same(value: T) -> Self {
        Self { listed: Vec::new(), rest: Some(value) }
    }

    /// List with one value for each card: the number of cards must be its length.
    pub fn exactly(values: Vec<T>) -> Self {
        Self { listed: values, rest: None }
    }

    /// `values` for the first cards, `rest` for those that follow.
    pub fn listed_then(values: Vec<T>, rest: T) -> Self {
        Self { listed: values, rest: Some(rest) }
    }

    /// The values for a request that got `cards` cards, in the order of the request.
    ///
    /// # Errors
    /// When more values are listed than there are cards, or fewer and the list may not be
    /// continued.
    pub fn for_cards(&self, cards: usize) -> Result<Vec<&T>, CardCountError> {
        let error = CardCountError { listed: self.listed.len(), cards };
        if self.listed.len() > cards {
            return Err(error);
        }
        (0..cards).map(|position| self.at(position).ok_or(error)).collect()
    }

    /// Combines two lists value by value. `None` when they are for different numbers of cards.
    pub fn combine<U, V>(&self, other: &PerCard<U>, mut join: impl FnMut(&T, &U) -> V) -> Option<PerCard<V>> {
        let length = self.listed.len().max(other.listed.len());
        let listed = (0..length)
            .map(|position| Some(join(self.at(position)?, other.at(position)?)))
            .collect::<Option<Vec<V>>>()?;
        let rest = match (&self.rest, &other.rest) {
            (Some(own), Some(others)) => Some(join(own, others)),
            _ => None,
        };
        Some(PerCard { listed, rest })
    }

    /// The same list with every value changed.
    pub fn map<U>(&self, mut change: impl FnMut(&T) -> U) -> PerCard<U> {
        PerCard { listed: self.listed.iter().map(&mut change).collect(), rest: self.rest.as_ref().map(&mut change) }
    }

    /// Every distinct value that some card may get.
    pub fn values(&self) -> impl Iterator<Item = &T> {
        self.listed.iter().chain(&self.rest)
    }

    /// Returns the number of cards that the list is for, when it says.
    pub fn exact_len(&self) -> Option<usize> {
        self.rest.is_none().then_some(self.listed.len())
    }

    fn at(&self, position: usize) -> Option<&T> {
        self.listed.get(position).or(self.rest.as_ref())
    }
}

impl<T: Clone> PerCard<T> {
    /// List with one value for each card; a short one is continued by its last value. `None` for an
    /// empty list.
    pub fn continued(values: Vec<T>) -> Option<Self> {
        let rest = values.last()?.clone();
        Some(Self { listed: values, rest: Some(rest) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_value_fits_any_number_of_cards() {
        let same = PerCard::same(7);
        assert_eq!(same.for_cards(0), Ok(vec![]));
        assert_eq!(same.for_cards(3), Ok(vec![&7, &7, &7]));
    }

    #[test]
    fn an_exact_list_fits_only_its_length() {
        let list = PerCard::exactly(vec![1, 2]);
        assert_eq!(list.for_cards(2), Ok(vec![&1, &2]));
        for cards in [0, 1, 3] {
            assert_eq!(list.for_cards(cards), Err(CardCountError { listed: 2, cards }));
        }
    }

    #[test]
    fn a_short_list_is_continued_by_its_last_value() {
        let list = PerCard::continued(vec![3, 1]).unwrap();
        assert_eq!(list.for_cards(4), Ok(vec![&3, &1, &1, &1]));
        assert_eq!(list.for_cards(1), Err(CardCountError { listed: 2, cards: 1 }));
        assert_eq!(PerCard::<u8>::continued(vec![]), None);
    }

    #[test]
    fn lists_are_combined_position_by_position() {
        let least = |own: &i32, others: &i32| *own.min(others);
        let exact = PerCard::exactly(vec![5, 1]);
        assert_eq!(exact.combine(&PerCard::same(3), least), Some(PerCard::exactly(vec![3, 1])));
        assert_eq!(exact.combine(&PerCard::exactly(vec![1, 1, 1]), least), None);
        let continued = PerCard::continued(vec![9, 2]).unwrap();
        assert_eq!(
            continued.combine(&PerCard::listed_then(vec![1], 4), least),
            Some(PerCard::listed_then(vec![1, 2], 2))
        );
        assert_eq!(continued.combine(&exact, least), Some(PerCard::exactly(vec![5, 1])));
    }
}
