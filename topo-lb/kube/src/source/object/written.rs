//! Objects as they are written: parsed values, or JSON text.

use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use serde_json::value::RawValue;

use super::error::ObjectError;

/// An object that can be read repeatedly: a parsed value, or JSON text.
pub trait Written: Copy {
    /// Reads it as a `T`.
    ///
    /// # Errors
    /// The object is not a `T`. The error has the field's path.
    fn read<T: DeserializeOwned>(self) -> Result<T, ObjectError>;

    /// The elements of its field `items`; empty if that is `null` or absent.
    ///
    /// # Errors
    /// The field is not a list.
    fn items(self) -> Result<Vec<Self>, ObjectError>;
}

impl Written for &Value {
    fn read<T: DeserializeOwned>(self) -> Result<T, ObjectError> {
        // Tracking the path costs an allocation per key, so only after an error.
        T::deserialize(self).or_else(|_| serde_path_to_error::deserialize(self).map_err(located))
    }

    fn items(self) -> Result<Vec<Self>, ObjectError> {
        match self.get("items") {
            None | Some(Value::Null) => Ok(Vec::new()),
            Some(Value::Array(items)) => Ok(items.iter().collect()),
            Some(_) => Err(ObjectError::at("items", "is not a list")),
        }
    }
}

impl Written for &str {
    fn read<T: DeserializeOwned>(self) -> Result<T, ObjectError> {
        serde_json::from_str(self).or_else(|_| {
            let mut text = serde_json::Deserializer::from_str(self);
            serde_path_to_error::deserialize(&mut text).map_err(located)
        })
    }

    fn items(self) -> Result<Vec<Self>, ObjectError> {
        let list: &RawValue =
            serde_json::from_str(self).map_err(|_| ObjectError::at("items", "is not a list"))?;
        Ok(list.items()?.into_iter().map(RawValue::get).collect())
    }
}

impl<'a> Written for &'a RawValue {
    fn read<T: DeserializeOwned>(self) -> Result<T, ObjectError> {
        self.get().read()
    }

    fn items(self) -> Result<Vec<Self>, ObjectError> {
        #[derive(Deserialize)]
        struct List<'a> {
            #[serde(borrow)]
            items: Option<Vec<&'a RawValue>>,
        }
        let list: Result<List<'a>, _> = serde_json::from_str(self.get());
        let list = list.map_err(|_| ObjectError::at("items", "is not a list"))?;
        Ok(list.items.unwrap_or_default())
    }
}

fn located(error: serde_path_to_error::Error<serde_json::Error>) -> ObjectError {
    let path = error.path().to_string();
    let json = error.into_inner();
    let mut reason = json.to_string();
    // Lines count from the object's start, which a reader of the file cannot use.
    let place = format!(" at line {} column {}", json.line(), json.column());
    if let Some(kept) = reason.strip_suffix(&place).map(str::len) {
        reason.truncate(kept);
    }
    ObjectError::at(if path == "." { "" } else { &path }, reason)
}
