//! The categories of failures. All contracts have the same words for them.

use tenure_contract::callback::Category as Wire;
use tenure_core::attempt::Category;

pub const fn of_wire(category: Wire) -> Category {
    match category {
        Wire::UserCode => Category::UserCode,
        Wire::DataQuality => Category::DataQuality,
        Wire::Infrastructure => Category::Infrastructure,
        Wire::Configuration => Category::Configuration,
        Wire::Timeout => Category::Timeout,
        Wire::Cancelled => Category::Canceled,
    }
}

/// The category that a code names, if it names one.
pub fn of_code(code: &str) -> Option<Category> {
    Wire::parse(code).map(of_wire)
}

pub const fn word(category: Category) -> &'static str {
    let wire = match category {
        Category::UserCode => Wire::UserCode,
        Category::DataQuality => Wire::DataQuality,
        Category::Infrastructure => Wire::Infrastructure,
        Category::Configuration => Wire::Configuration,
        Category::Timeout => Wire::Timeout,
        Category::Canceled => Wire::Cancelled,
    };
    wire.as_str()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_names_its_category_and_the_retry_that_the_contract_says() {
        for category in Category::ALL {
            assert_eq!(of_code(word(category)), Some(category));
        }
        for wire in Wire::ALL {
            assert_eq!(of_wire(*wire).is_retryable(), wire.retryable_by_default(), "{wire}");
        }
        assert_eq!(of_code("HTTP_503"), None);
    }
}
