package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apiextensions-apiserver/pkg/apiserver"
	structuralschema "k8s.io/apiextensions-apiserver/pkg/apiserver/schema"
	"k8s.io/apiextensions-apiserver/pkg/registry/customresourcedefinition"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

type definitionAnswer struct {
	DecodeError string          `json:"decodeError,omitempty"`
	Strict      []string        `json:"strict,omitempty"`
	Errors      []fieldError    `json:"errors,omitempty"`
	Unordered   bool            `json:"unordered,omitempty"`
	Warnings    []string        `json:"warnings,omitempty"`
	Prepared    json.RawMessage `json:"prepared,omitempty"`
}

func (a *definitionAnswer) errorList() *[]fieldError { return &a.Errors }
func (a *definitionAnswer) setUnordered()            { a.Unordered = true }
func (a *definitionAnswer) isSingle() bool           { return len(a.Errors) < 2 && len(a.Warnings) < 2 }

var (
	codecs       = serializer.NewCodecFactory(apiserver.Scheme)
	definitionV1 = apiextensionsv1.SchemeGroupVersion.WithKind("CustomResourceDefinition")
)

// decodedDefinition is a definition with defaults, in the internal version, with the errors of strict field validation.
func decodedDefinition(text json.RawMessage) (*apiextensions.CustomResourceDefinition, []string, error) {
	info, _ := runtime.SerializerInfoForMediaType(codecs.SupportedMediaTypes(), "application/json")
	decoder := codecs.DecoderToVersion(info.StrictSerializer, apiextensions.SchemeGroupVersion)
	kind := definitionV1
	decoded, _, err := decoder.Decode(text, &kind, &apiextensions.CustomResourceDefinition{})
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
	definition, isDefinition := decoded.(*apiextensions.CustomResourceDefinition)
	if !isDefinition {
		return nil, nil, fmt.Errorf("decoded as %T", decoded)
	}
	return definition, strict, nil
}

func (q *question) definitionAnswer() (*definitionAnswer, error) {
	answer := &definitionAnswer{}
	definition, strict, err := decodedDefinition(q.Definition)
	if err != nil {
		answer.DecodeError = err.Error()
		return answer, nil
	}
	if q.Stored {
		answer.Prepared, err = runtime.Encode(codecs.EncoderForVersion(jsonSerializer(), apiextensionsv1.SchemeGroupVersion), definition)
		return answer, err
	}
	answer.Strict = strict
	ctx := context.Background()
	strategy := customresourcedefinition.NewStrategy(apiserver.Scheme)
	if len(q.Old) == 0 {
		strategy.PrepareForCreate(ctx, definition)
		answer.Errors = fieldErrors(strategy.Validate(ctx, definition), "")
		answer.Warnings = strategy.WarningsOnCreate(ctx, definition)
	} else {
		old, _, err := decodedDefinition(q.Old)
		if err != nil {
			return nil, fmt.Errorf("old: %w", err)
		}
		// What the store does before it asks the strategy, and a resourceVersion that a client would have sent.
		definition.Generation = old.Generation
		definition.CreationTimestamp = old.CreationTimestamp
		if definition.UID == "" {
			definition.UID = old.UID
		}
		if old.ResourceVersion == "" {
			old.ResourceVersion = "1"
		}
		if definition.ResourceVersion == "" {
			definition.ResourceVersion = old.ResourceVersion
		}
		strategy.PrepareForUpdate(ctx, definition, old)
		answer.Errors = fieldErrors(strategy.ValidateUpdate(ctx, definition, old), "")
		answer.Warnings = strategy.WarningsOnUpdate(ctx, definition, old)
	}
	slices.Sort(answer.Warnings)
	if q.Show {
		encoder := codecs.EncoderForVersion(jsonSerializer(), apiextensionsv1.SchemeGroupVersion)
		if answer.Prepared, err = runtime.Encode(encoder, definition); err != nil {
			return nil, err
		}
	}
	return answer, nil
}

func jsonSerializer() runtime.Serializer {
	info, _ := runtime.SerializerInfoForMediaType(codecs.SupportedMediaTypes(), "application/json")
	return info.Serializer
}

type structuralAnswer struct {
	ConversionError string       `json:"conversionError,omitempty"`
	Structural      []fieldError `json:"structural,omitempty"`
	Definition      []fieldError `json:"definition,omitempty"`
	Unordered       bool         `json:"unordered,omitempty"`
}

func (a *structuralAnswer) errorList() *[]fieldError { return &a.Definition }
func (a *structuralAnswer) setUnordered()            { a.Unordered = true }
func (a *structuralAnswer) isSingle() bool {
	return len(a.Definition) < 2 && len(a.Structural) < 2 && a.ConversionError == ""
}

func (q *question) structuralAnswer() (*structuralAnswer, error) {
	answer := &structuralAnswer{}
	internal, err := internalSchema(q.Schema)
	if err != nil {
		return nil, err
	}
	if internal == nil {
		return nil, errors.New("schema: missing")
	}
	if structural, err := structuralschema.NewStructural(internal); err != nil {
		answer.ConversionError = err.Error()
	} else {
		answer.Structural = fieldErrors(structuralschema.ValidateStructural(field.NewPath("schema"), structural), "")
		sortErrors(answer.Structural)
	}
	definition := question{Definition: definitionOf(q.Schema)}
	defined, err := definition.definitionAnswer()
	if err != nil {
		return nil, err
	}
	if defined.DecodeError != "" {
		return nil, errors.New(defined.DecodeError)
	}
	answer.Definition = defined.Errors
	return answer, nil
}

// definitionOf is a definition with one version with a schema.
func definitionOf(schema json.RawMessage) json.RawMessage {
	return definitionWith(schema, "{}")
}

func definitionWith(schema json.RawMessage, subresources string) json.RawMessage {
	return fmt.Appendf(nil, `{"apiVersion":"apiextensions.k8s.io/v1","kind":"CustomResourceDefinition","metadata":{"name":"cases.a.io"},`+
		`"spec":{"group":"a.io","scope":"Cluster","names":{"plural":"cases","kind":"Case"},`+
		`"versions":[{"name":"v1","served":true,"storage":true,"subresources":%s,"schema":{"openAPIV3Schema":%s}}]}}`, subresources, schema)
}
