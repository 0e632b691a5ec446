//! Formats that validation ignores (`pkg/apiserver/validation/formats.go`).

use kubeapi::schema::is_text_format;

use super::hoisted::HoistedSpec;

/// The formats in the schemas of a CRD that validation ignores.
pub(super) fn unrecognized_formats(spec: &HoistedSpec<'_>) -> Vec<String> {
    let mut found = Vec::new();
    spec.any_schema(|schema| {
        let (format, value_type) = (&*schema.format, &*schema.value_type);
        let is_recognized = match value_type {
            "" | "string" => is_text_format(format),
            "integer" => matches!(format, "int32" | "int64"),
            "number" => matches!(format, "float" | "double"),
            _ => false,
        };
        if !format.is_empty() && !is_recognized {
            found.push(format.to_owned());
        }
        false
    });
    found
}
