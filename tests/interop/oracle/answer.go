package main

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation/field"
)

// question is a case: the fields of every operation, and the answer.
type question struct {
	Op string `json:"op"`

	Schema                json.RawMessage   `json:"schema,omitempty"`
	Definition            json.RawMessage   `json:"definition,omitempty"`
	Columns               json.RawMessage   `json:"columns,omitempty"`
	Object                json.RawMessage   `json:"object,omitempty"`
	Old                   json.RawMessage   `json:"old,omitempty"`
	Namespaced            bool              `json:"namespaced,omitempty"`
	Status                bool              `json:"status,omitempty"`
	Subresource           string            `json:"subresource,omitempty"`
	Scale                 json.RawMessage   `json:"scale,omitempty"`
	PreserveUnknownFields bool              `json:"preserveUnknownFields,omitempty"`
	Stored                bool              `json:"stored,omitempty"`
	Show                  bool              `json:"show,omitempty"`
	Version               string            `json:"version,omitempty"`
	Part                  string            `json:"part,omitempty"`
	Now                   string            `json:"now,omitempty"`
	Pattern               *string           `json:"pattern,omitempty"`
	Strings               []string          `json:"strings,omitempty"`
	Format                string            `json:"format,omitempty"`
	Type                  string            `json:"type,omitempty"`
	Values                []json.RawMessage `json:"values,omitempty"`

	Answer json.RawMessage `json:"answer,omitempty"`
}

func (q *question) answer() (answer any, err error) {
	defer func() {
		if recovered := recover(); recovered != nil {
			err = panicError{recovered}
		}
	}()
	switch q.Op {
	case "object":
		return stableAnswer(q.objectAnswer)
	case "structural":
		return stableAnswer(q.structuralAnswer)
	case "definition":
		return stableAnswer(q.definitionAnswer)
	case "table":
		return q.tableAnswer()
	case "openapi":
		return q.openapiAnswer()
	case "pattern":
		return q.patternAnswer()
	case "format":
		return q.formatAnswer()
	}
	return nil, fmt.Errorf("unknown op %q", q.Op)
}

// fieldError is a field.Error.
type fieldError struct {
	Type   string          `json:"type"`
	Field  string          `json:"field"`
	Value  json.RawMessage `json:"value,omitempty"`
	Detail string          `json:"detail,omitempty"`
	Text   string          `json:"text"`
	From   string          `json:"from,omitempty"`
}

// isBrief leaves out of errors what their text says, too: the value and the detail.
var isBrief bool

func fieldErrors(list field.ErrorList, from string) []fieldError {
	errors := make([]fieldError, 0, len(list))
	for _, err := range list {
		converted := fieldError{Type: string(err.Type), Field: err.Field, Text: err.Error(), From: from}
		if isBrief {
			errors = append(errors, converted)
			continue
		}
		converted.Detail = err.Detail
		switch err.Type {
		case field.ErrorTypeRequired, field.ErrorTypeForbidden, field.ErrorTypeTooLong, field.ErrorTypeTooShort, field.ErrorTypeInternal:
		default:
			if _, omitted := err.BadValue.(field.OmitValueType); !omitted {
				if value, err := encode(err.BadValue); err == nil {
					converted.Value = value
				}
			}
		}
		errors = append(errors, converted)
	}
	return errors
}

// unstableError says that upstream gives different answers to the same question: it walks Go maps.
type unstableError struct{ first, other string }

func (e unstableError) Error() string {
	return fmt.Sprintf("unstable: %s or %s", e.first, e.other)
}

// panicError says that upstream panics: its server answers 500. So it does for selectable fields of a schema that has no
// structural form.
type panicError struct{ recovered any }

func (e panicError) Error() string { return fmt.Sprintf("panic: %v", e.recovered) }

// errorAnswer is an answer with errors whose order may differ between runs.
type errorAnswer interface {
	errorList() *[]fieldError
	setUnordered()
	// isSingle says that there is nothing that could differ between runs.
	isSingle() bool
}

// runs is how often a question is asked whose answer may differ between runs.
const runs = 48

// tableRuns is how often a table is made. A map with two keys is walked from the second one in one of eight runs alone.
const tableRuns = 400

func stableAnswer[A errorAnswer](ask func() (A, error)) (any, error) {
	first, err := ask()
	if err != nil || first.isSingle() {
		return first, err
	}
	order := texts(*first.errorList())
	unordered := false
	sortErrors(*first.errorList())
	want, err := encode(first)
	if err != nil {
		return nil, err
	}
	for range runs {
		again, err := ask()
		if err != nil {
			return nil, err
		}
		unordered = unordered || !slices.Equal(order, texts(*again.errorList()))
		sortErrors(*again.errorList())
		have, err := encode(again)
		if err != nil {
			return nil, err
		}
		if string(have) != string(want) {
			return nil, unstableError{string(want), string(have)}
		}
	}
	if unordered {
		first.setUnordered()
		return first, nil
	}
	return ask()
}

func texts(errors []fieldError) []string {
	texts := make([]string, 0, len(errors))
	for _, err := range errors {
		texts = append(texts, err.Text)
	}
	return texts
}

func sortErrors(errors []fieldError) {
	slices.SortFunc(errors, func(a, b fieldError) int {
		return strings.Compare(a.Text+a.From, b.Text+b.From)
	})
}
