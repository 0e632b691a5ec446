package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"slices"

	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	structuralschema "k8s.io/apiextensions-apiserver/pkg/apiserver/schema"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/defaulting"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/listtype"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/objectmeta"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/pruning"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/validation"
	"k8s.io/apiextensions-apiserver/pkg/crdserverscheme"
	"k8s.io/apiextensions-apiserver/pkg/registry/customresource"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	serializerjson "k8s.io/apimachinery/pkg/runtime/serializer/json"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

var caseKind = schema.GroupVersionKind{Group: "a.io", Version: "v1", Kind: "Case"}

type objectAnswer struct {
	SchemaError string       `json:"schemaError,omitempty"`
	DecodeError string       `json:"decodeError,omitempty"`
	Strict      []string     `json:"strict,omitempty"`
	Pruned      any          `json:"pruned,omitempty"`
	Defaulted   any          `json:"defaulted,omitempty"`
	Prepared    any          `json:"prepared,omitempty"`
	Errors      []fieldError `json:"errors,omitempty"`
	Unordered   bool         `json:"unordered,omitempty"`
	Warnings    []string     `json:"warnings,omitempty"`
}

func (a *objectAnswer) errorList() *[]fieldError { return &a.Errors }
func (a *objectAnswer) setUnordered()            { a.Unordered = true }
func (a *objectAnswer) isSingle() bool {
	return len(a.Errors) < 2 && a.DecodeError == "" && len(a.Strict) == 0
}

// compiledSchema is what a handler has of a version.
type compiledSchema struct {
	structural *structuralschema.Structural
	internal   *apiextensions.JSONSchemaProps
}

func internalSchema(text json.RawMessage) (*apiextensions.JSONSchemaProps, error) {
	if len(text) == 0 {
		return nil, nil
	}
	external := &apiextensionsv1.JSONSchemaProps{}
	if err := json.Unmarshal(text, external); err != nil {
		return nil, fmt.Errorf("schema: %w", err)
	}
	internal := &apiextensions.JSONSchemaProps{}
	if err := apiextensionsv1.Convert_v1_JSONSchemaProps_To_apiextensions_JSONSchemaProps(external, internal, nil); err != nil {
		return nil, fmt.Errorf("schema: %w", err)
	}
	return internal, nil
}

// compile is the schema as a handler uses it, and the reason that the handler would give to use none.
func compile(text json.RawMessage, preserveUnknownFields bool) (compiledSchema, error) {
	internal, err := internalSchema(text)
	if err != nil || internal == nil {
		return compiledSchema{}, err
	}
	structural, err := structuralschema.NewStructural(internal)
	if preserveUnknownFields {
		return compiledSchema{structural, internal}, nil
	}
	if err != nil {
		return compiledSchema{}, err
	}
	structural = structural.DeepCopy()
	if err := defaulting.PruneDefaults(structural); err != nil {
		return compiledSchema{}, err
	}
	return compiledSchema{structural, internal}, nil
}

type unstructuredCreator struct{}

func (unstructuredCreator) New(kind schema.GroupVersionKind) (runtime.Object, error) {
	object := &unstructured.Unstructured{}
	object.SetGroupVersionKind(kind)
	return object, nil
}

// decoded is an object of a request or of the store, with the errors of strict field validation.
func (q *question) decoded(text json.RawMessage, schema compiledSchema, stored bool) (*unstructured.Unstructured, []string, error) {
	serializer := serializerjson.NewSerializerWithOptions(serializerjson.DefaultMetaFactory, unstructuredCreator{},
		crdserverscheme.NewUnstructuredObjectTyper(), serializerjson.SerializerOptions{Strict: !stored})
	kind := caseKind
	decoded, _, err := serializer.Decode(text, &kind, &unstructured.Unstructured{})
	var strict []string
	if err != nil {
		strictError, isStrict := runtime.AsStrictDecodingError(err)
		if !isStrict || decoded == nil {
			return nil, nil, err
		}
		for _, err := range strictError.Errors() {
			strict = append(strict, err.Error())
		}
	}
	object, isUnstructured := decoded.(*unstructured.Unstructured)
	if !isUnstructured {
		return nil, nil, fmt.Errorf("decoded as %T", decoded)
	}
	unknown, err := q.coerce(object, schema, stored)
	if err != nil {
		return nil, nil, err
	}
	for _, path := range unknown {
		strict = append(strict, fmt.Sprintf("unknown field %q", path))
	}
	return object, strict, nil
}

// coerce does the steps of upstream's unstructuredSchemaCoercer with the same functions: metadata through its Go type,
// pruning, forbidden nulls, embedded metadata.
func (q *question) coerce(object *unstructured.Unstructured, schema compiledSchema, stored bool) ([]string, error) {
	content := object.Object
	kind, hasKind, err := unstructured.NestedString(content, "kind")
	if err != nil {
		return nil, err
	}
	apiVersion, hasVersion, err := unstructured.NestedString(content, "apiVersion")
	if err != nil {
		return nil, err
	}
	meta, hasMeta, unknown, err := objectmeta.GetObjectMetaWithOptions(content, objectmeta.ObjectMetaOptions{
		DropMalformedFields: stored, ReturnUnknownFieldPaths: !stored,
	})
	if err != nil {
		return nil, err
	}
	if kind == caseKind.Kind && apiVersion == caseKind.GroupVersion().String() {
		if !q.PreserveUnknownFields {
			options := structuralschema.UnknownFieldPathOptions{TrackUnknownFieldPaths: !stored}
			unknown = append(unknown, pruning.PruneWithOptions(content, schema.structural, true, options)...)
			defaulting.PruneNonNullableNullsWithoutDefaults(content, schema.structural)
		}
		invalid, embedded := objectmeta.CoerceWithOptions(nil, content, schema.structural, false, objectmeta.CoerceOptions{
			DropInvalidFields: stored, ReturnUnknownFieldPaths: !stored,
		})
		if invalid != nil {
			return nil, invalid
		}
		unknown = append(unknown, embedded...)
		if stored && meta != nil && meta.Generation == 0 {
			meta.Generation = 1
		}
	}
	if hasKind {
		object.SetKind(kind)
	}
	if hasVersion {
		object.SetAPIVersion(apiVersion)
	}
	if hasMeta {
		if err := objectmeta.SetObjectMeta(content, meta); err != nil {
			return nil, err
		}
	}
	return unknown, nil
}

func (q *question) objectAnswer() (*objectAnswer, error) {
	compiled, err := compile(q.Schema, q.PreserveUnknownFields)
	if err != nil {
		return &objectAnswer{SchemaError: err.Error()}, nil
	}
	answer := &objectAnswer{}
	object, strict, err := q.decoded(q.Object, compiled, q.Stored)
	if err != nil {
		answer.DecodeError = err.Error()
		return answer, nil
	}
	answer.Strict = strict
	given, err := canonical(q.Object)
	if err != nil {
		return nil, err
	}
	pruned, err := encode(object.Object)
	if err != nil {
		return nil, err
	}
	if !bytes.Equal(given, pruned) {
		answer.Pruned = json.RawMessage(pruned)
	}
	defaulting.Default(object.Object, compiled.structural)
	defaulted, err := encode(object.Object)
	if err != nil {
		return nil, err
	}
	if !bytes.Equal(pruned, defaulted) {
		answer.Defaulted = json.RawMessage(defaulted)
	}
	if q.Stored {
		return answer, nil
	}
	return answer, q.validate(answer, object, compiled)
}

// canonical is JSON with sorted keys, and with numbers as a handler writes them.
func canonical(text json.RawMessage) ([]byte, error) {
	object := &unstructured.Unstructured{}
	if err := object.UnmarshalJSON(text); err != nil {
		return text, nil
	}
	return encode(object.Object)
}

func (q *question) validate(answer *objectAnswer, object *unstructured.Unstructured, compiled compiledSchema) error {
	validator, _, err := validation.NewSchemaValidator(compiled.internal)
	if err != nil {
		answer.SchemaError = err.Error()
		return nil
	}
	var statusValidator validation.SchemaValidator
	var status *apiextensions.CustomResourceSubresourceStatus
	if q.Status {
		status = &apiextensions.CustomResourceSubresourceStatus{}
		if compiled.internal != nil {
			if property, isThere := compiled.internal.Properties["status"]; isThere {
				if statusValidator, _, err = validation.NewSchemaValidator(&property); err != nil {
					return err
				}
			}
		}
	}
	var scale *apiextensions.CustomResourceSubresourceScale
	if len(q.Scale) > 0 {
		scale = &apiextensions.CustomResourceSubresourceScale{}
		if err := json.Unmarshal(q.Scale, scale); err != nil {
			return err
		}
	}
	ctx := context.Background()
	strategy := customresource.NewStrategy(crdserverscheme.NewUnstructuredObjectTyper(), q.Namespaced, caseKind, validator,
		statusValidator, compiled.structural, status, scale, nil)
	steps := map[string]field.ErrorList{
		"embedded": objectmeta.Validate(nil, object.Object, compiled.structural, false),
	}
	var errors field.ErrorList
	if len(q.Old) == 0 {
		strategy.PrepareForCreate(ctx, object)
		errors = strategy.Validate(ctx, object)
		answer.Warnings = strategy.WarningsOnCreate(ctx, object)
		steps["meta"] = apivalidation.ValidateObjectMetaAccessor(object, q.Namespaced, apivalidation.NameIsDNSSubdomain, field.NewPath("metadata"))
	} else {
		old, _, err := q.decoded(q.Old, compiled, true)
		if err != nil {
			return fmt.Errorf("old: %w", err)
		}
		defaulting.Default(old.Object, compiled.structural)
		// What the store does before it asks the strategy, and a resourceVersion that a client would have sent.
		object.SetGeneration(old.GetGeneration())
		object.SetCreationTimestamp(old.GetCreationTimestamp())
		if object.GetUID() == "" {
			object.SetUID(old.GetUID())
		}
		if old.GetResourceVersion() == "" {
			old.SetResourceVersion("1")
		}
		if object.GetResourceVersion() == "" {
			object.SetResourceVersion(old.GetResourceVersion())
		}
		if q.Subresource == "status" {
			strategy := customresource.NewStatusStrategy(strategy)
			strategy.PrepareForUpdate(ctx, object, old)
			errors = strategy.ValidateUpdate(ctx, object, old)
			answer.Warnings = strategy.WarningsOnUpdate(ctx, object, old)
		} else {
			strategy.PrepareForUpdate(ctx, object, old)
			errors = strategy.ValidateUpdate(ctx, object, old)
			answer.Warnings = strategy.WarningsOnUpdate(ctx, object, old)
		}
		steps["meta"] = apivalidation.ValidateObjectMetaAccessorUpdate(object, old, field.NewPath("metadata"))
	}
	if q.Status {
		prepared := map[string]any{}
		for name, value := range object.Object {
			if name != "metadata" {
				prepared[name] = value
			}
		}
		text, err := encode(prepared)
		if err != nil {
			return err
		}
		answer.Prepared = json.RawMessage(text)
	}
	steps["embedded"] = objectmeta.Validate(nil, object.Object, compiled.structural, false)
	steps["list"] = listtype.ValidateListSetsAndMaps(nil, compiled.structural, object.Object)
	answer.Errors = attribute(errors, steps)
	return nil
}

// attribute adds to each error the step that it is of. What no other step says is of the schema or of scale.
func attribute(list field.ErrorList, steps map[string]field.ErrorList) []fieldError {
	remaining := map[string][]string{}
	for _, step := range []string{"list", "embedded", "meta"} {
		for _, err := range steps[step] {
			remaining[step] = append(remaining[step], err.Error())
		}
	}
	errors := fieldErrors(list, "schema")
	take := func(step string, index int) bool {
		at := slices.Index(remaining[step], errors[index].Text)
		if at < 0 {
			return false
		}
		remaining[step] = slices.Delete(remaining[step], at, at+1)
		errors[index].From = step
		return true
	}
	first, last := 0, len(errors)
	for ; first < last && take("meta", first); first++ {
	}
	for _, step := range []string{"list", "embedded"} {
		for ; first < last && take(step, last-1); last-- {
		}
	}
	for index := first; index < last; index++ {
		err := &errors[index]
		if len(err.Field) > 0 && err.Field[0] == '.' {
			err.From = "scale"
		}
		if err.Field == "kind" || err.Field == "apiVersion" {
			err.From = "meta"
		}
	}
	return errors
}
