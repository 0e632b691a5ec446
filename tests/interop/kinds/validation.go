package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sort"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	validationfield "k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/authentication/user"
	genericapirequest "k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/apiserver/pkg/warning"
	"k8s.io/kubernetes/pkg/api/legacyscheme"
	"k8s.io/kubernetes/pkg/printers"
	printersinternal "k8s.io/kubernetes/pkg/printers/internalversion"
	"sigs.k8s.io/yaml"
)

// validationFolder holds a file for each kind of the table `validatedKinds`.
const validationFolder = "src/kinds/testdata/validation"

// objectEntry is an item of a file in `objects`: an object, and how it is changed.
type objectEntry struct {
	// Object as a client sends it. It must be valid.
	Object map[string]any `json:"object"`
	// Patches are JSON merge patches. Each makes an object of its own of the object.
	Patches []map[string]any `json:"patches"`
	// Updates are JSON merge patches of the created object. Each replaces it.
	Updates []map[string]any `json:"updates"`
	// StatusUpdates are JSON merge patches of the created object. Each is written to the subresource `status`.
	StatusUpdates []map[string]any `json:"statusUpdates"`
	// Unchanged objects get no systematic changes.
	Unchanged bool `json:"unchanged"`
	// Print is an object as it is stored, whose row in a Table is written.
	Print map[string]any `json:"print"`
}

// validationLine is a line of a file in `validationFolder`.
type validationLine struct {
	// Object is sent to be created. The lines that follow change it.
	Object map[string]any `json:"object,omitempty"`
	// Created is what becomes of it.
	Created json.RawMessage `json:"created,omitempty"`
	// At is a JSON pointer of what is changed, Value what is set there; null removes.
	At    string           `json:"at,omitempty"`
	Value *json.RawMessage `json:"value,omitempty"`
	// Patch is a JSON merge patch of the object, or of the created object if it is an update.
	Patch map[string]any `json:"patch,omitempty"`
	// Update is "object" or "status" for a write that replaces the created object.
	Update string `json:"update,omitempty"`
	// Updated is what becomes of the created object.
	Updated json.RawMessage `json:"updated,omitempty"`
	// Errors are the texts of the errors, in order.
	Errors []string `json:"errors,omitempty"`
	// Unordered errors come from a Go map, in another order each time.
	Unordered bool     `json:"unordered,omitempty"`
	Warnings  []string `json:"warnings,omitempty"`
	// Print is an object whose cells in a Table follow, at a time.
	Print map[string]any `json:"print,omitempty"`
	Cells []any          `json:"cells,omitempty"`
	Now   string         `json:"now,omitempty"`
}

// validationCases are the files of all kinds.
func validationCases(objects string) (map[string][]byte, error) {
	files := map[string][]byte{}
	for _, kind := range validatedKinds {
		text, err := os.ReadFile(filepath.Join(objects, kind.file+".yaml"))
		if os.IsNotExist(err) {
			fmt.Printf("%s: no objects\n", kind.file)
			continue
		}
		if err != nil {
			return nil, err
		}
		var entries []objectEntry
		if err := yaml.UnmarshalStrict(text, &entries); err != nil {
			return nil, fmt.Errorf("%s: %w", kind.file, err)
		}
		writer := &validationWriter{kind: kind}
		for i, entry := range entries {
			if err := writer.writeEntry(&entry); err != nil {
				return nil, fmt.Errorf("%s, object %d: %w", kind.file, i, err)
			}
		}
		files[filepath.Join(validationFolder, kind.file+".jsonl")] = writer.out.Bytes()
	}
	return files, nil
}

type validationWriter struct {
	kind validatedKind
	out  bytes.Buffer
	// Number of changes without errors and warnings, most of which are left out.
	accepted int
	// Number of changes with long errors, most of which are left out.
	long int
}

func (w *validationWriter) writeEntry(entry *objectEntry) error {
	if entry.Print != nil {
		return w.writePrinted(entry.Print)
	}
	created, line, err := w.create(entry.Object)
	if err != nil {
		return err
	}
	line.Object, line.Created = entry.Object, created
	if line.Cells, line.Now, err = w.cells(created); err != nil {
		return err
	}
	if len(line.Errors) > 0 {
		return fmt.Errorf("invalid: %v", line.Errors)
	}
	if err := w.write(line); err != nil {
		return err
	}
	for _, patch := range entry.Patches {
		created, line, err := w.create(merged(entry.Object, patch).(map[string]any))
		if errors.Is(err, errPanic) {
			fmt.Printf("%s, patch %v: %v\n", w.kind.file, patch, err)
			continue
		}
		if err != nil {
			return fmt.Errorf("patch %v: %w", patch, err)
		}
		line.Patch = patch
		if len(line.Errors) == 0 {
			line.Created = created
		}
		if err := w.write(line); err != nil {
			return err
		}
	}
	var stored map[string]any
	if err := json.Unmarshal(created, &stored); err != nil {
		return err
	}
	for _, one := range []struct {
		name    string
		patches []map[string]any
	}{{"object", entry.Updates}, {"status", entry.StatusUpdates}} {
		for _, patch := range one.patches {
			updated, line, err := w.update(one.name, created, merged(stored, patch).(map[string]any))
			if err != nil {
				return fmt.Errorf("update %v: %w", patch, err)
			}
			line.Patch = patch
			if len(line.Errors) == 0 {
				line.Updated = updated
			}
			if err := w.write(line); err != nil {
				return err
			}
		}
	}
	if entry.Unchanged {
		return nil
	}
	for _, change := range changesOf(entry.Object) {
		if _, line, err := w.create(change.apply(entry.Object)); err == nil {
			if err := w.writeChange(line, change); err != nil {
				return err
			}
		}
	}
	for i, change := range changesOf(withoutStatus(stored)) {
		if i%updateSample != 0 {
			continue
		}
		if _, line, err := w.update("object", created, change.apply(stored)); err == nil {
			if err := w.writeChange(line, change); err != nil {
				return err
			}
		}
	}
	return nil
}

// Of this many changes of an object that is replaced, one is taken; of those without errors and warnings, one is written.
const (
	updateSample   = 9
	acceptedSample = 4
)

// Of this many changes whose errors have more bytes, one is written.
const (
	longSample = 20
	longErrors = 1000
)

func (w *validationWriter) writeChange(line *validationLine, change change) error {
	if len(line.Errors) == 0 && len(line.Warnings) == 0 {
		if w.accepted++; w.accepted%acceptedSample != 1 {
			return nil
		}
	}
	text, err := json.Marshal(change.value)
	if err != nil {
		return err
	}
	line.At, line.Value = change.pointer, (*json.RawMessage)(&text)
	if size := len(strings.Join(line.Errors, "")); size > longErrors {
		if w.long++; w.long%longSample != 1 {
			return nil
		}
	}
	return w.write(line)
}

func (w *validationWriter) write(line *validationLine) error {
	return writeLine(&w.out, line)
}

// create does what a kube-apiserver does with a new object, and returns what it stores.
func (w *validationWriter) create(object map[string]any) (created json.RawMessage, line *validationLine, err error) {
	defer recoverFrom(&err)
	internal, err := w.decode(object)
	if err != nil {
		return nil, nil, err
	}
	ctx, recorder := w.context(internal)
	strategy := w.kind.strategy
	strategy.PrepareForCreate(ctx, internal)
	line = &validationLine{}
	if line.setErrors(func() validationfield.ErrorList { return strategy.Validate(ctx, internal) }); len(line.Errors) == 0 {
		recorder.warnings = append(recorder.warnings, strategy.WarningsOnCreate(ctx, internal)...)
		strategy.Canonicalize(internal)
	}
	line.Warnings = recorder.warnings
	created, err = w.encode(internal)
	return created, line, err
}

// update does what a kube-apiserver does with an object that replaces another one, and returns what it stores.
func (w *validationWriter) update(part string, old json.RawMessage, object map[string]any) (updated json.RawMessage, line *validationLine, err error) {
	defer recoverFrom(&err)
	oldInternal, err := runtime.Decode(legacyscheme.Codecs.UniversalDecoder(), old)
	if err != nil {
		return nil, nil, err
	}
	internal, err := w.decode(object)
	if err != nil {
		return nil, nil, err
	}
	for _, one := range []runtime.Object{oldInternal, internal} {
		accessor, err := meta.Accessor(one)
		if err != nil {
			return nil, nil, err
		}
		accessor.SetResourceVersion("1")
	}
	oldMeta, _ := meta.Accessor(oldInternal)
	newMeta, _ := meta.Accessor(internal)
	newMeta.SetGeneration(oldMeta.GetGeneration())
	strategy := rest.RESTUpdateStrategy(w.kind.strategy)
	if part == "status" {
		if strategy = w.kind.status; strategy == nil {
			return nil, nil, fmt.Errorf("no status")
		}
	}
	ctx, recorder := w.context(internal)
	if part == "status" {
		ctx = genericapirequest.WithUser(ctx, &user.DefaultInfo{Name: "admin"})
	}
	strategy.PrepareForUpdate(ctx, internal, oldInternal)
	line = &validationLine{Update: part}
	if line.setErrors(func() validationfield.ErrorList { return strategy.ValidateUpdate(ctx, internal, oldInternal) }); len(line.Errors) == 0 {
		recorder.warnings = append(recorder.warnings, strategy.WarningsOnUpdate(ctx, internal, oldInternal)...)
		strategy.Canonicalize(internal)
	}
	line.Warnings = recorder.warnings
	newMeta.SetResourceVersion("")
	updated, err = w.encode(internal)
	return updated, line, err
}

// errPanic is the error of an object for which a kube-apiserver answers with 500, since its code panics.
var errPanic = errors.New("panic")

func recoverFrom(err *error) {
	if recovered := recover(); recovered != nil {
		*err = fmt.Errorf("%w: %v", errPanic, recovered)
	}
}

func (w *validationWriter) decode(object map[string]any) (runtime.Object, error) {
	text, err := json.Marshal(object)
	if err != nil {
		return nil, err
	}
	return runtime.Decode(legacyscheme.Codecs.UniversalDecoder(), text)
}

// encode writes an object to the store, and reads it back, which sets defaults.
func (w *validationWriter) encode(internal runtime.Object) (json.RawMessage, error) {
	stored, err := w.marshal(internal)
	if err != nil {
		return nil, err
	}
	if internal, err = runtime.Decode(legacyscheme.Codecs.UniversalDecoder(), stored); err != nil {
		return nil, err
	}
	return w.marshal(internal)
}

func (w *validationWriter) marshal(internal runtime.Object) (json.RawMessage, error) {
	versioned, err := legacyscheme.Scheme.ConvertToVersion(internal, w.kind.version)
	if err != nil {
		return nil, err
	}
	return json.Marshal(versioned)
}

// context is that of a request for the object.
func (w *validationWriter) context(object runtime.Object) (context.Context, *warningRecorder) {
	recorder := &warningRecorder{}
	ctx := warning.WithWarningRecorder(context.Background(), recorder)
	accessor, err := meta.Accessor(object)
	must(err)
	ctx = genericapirequest.WithNamespace(ctx, accessor.GetNamespace())
	ctx = genericapirequest.WithRequestInfo(ctx, &genericapirequest.RequestInfo{
		IsResourceRequest: true,
		APIGroup:          w.kind.version.Group,
		APIVersion:        w.kind.version.Version,
		Resource:          w.kind.plural(),
		Namespace:         accessor.GetNamespace(),
		Name:              accessor.GetName(),
	})
	return ctx, recorder
}

type warningRecorder struct{ warnings []string }

func (r *warningRecorder) AddWarning(_, text string) { r.warnings = append(r.warnings, text) }

// setErrors validates several times, to find out whether the order of the errors is stable.
func (l *validationLine) setErrors(validate func() validationfield.ErrorList) {
	l.Errors = texts(validate())
	for range 4 {
		again := texts(validate())
		l.Unordered = l.Unordered || !slices.Equal(again, l.Errors)
	}
	if l.Unordered {
		slices.Sort(l.Errors)
	}
}

// texts are the errors as the causes of a Status have them.
func texts(list validationfield.ErrorList) []string {
	var all []string
	for _, err := range list {
		all = append(all, err.Field+": "+err.ErrorBody())
	}
	return all
}

var tableGenerator = printers.NewTableGenerator().With(printersinternal.AddHandlers)

// printTime is when the rows are printed: ages of the objects are of many years, so that they are the same all day.
var printTime = time.Now().UTC().Truncate(24 * time.Hour)

func (w *validationWriter) cells(object json.RawMessage) ([]any, string, error) {
	internal, err := runtime.Decode(legacyscheme.Codecs.UniversalDecoder(), object)
	if err != nil {
		return nil, "", err
	}
	table, err := tableGenerator.GenerateTable(internal, printers.GenerateOptions{Wide: true})
	if err != nil && strings.HasPrefix(err.Error(), "no table handler registered") {
		return nil, "", nil
	}
	if err != nil {
		return nil, "", err
	}
	if len(table.Rows) != 1 {
		return nil, "", fmt.Errorf("%d rows", len(table.Rows))
	}
	return table.Rows[0].Cells, printTime.Format(time.RFC3339), nil
}

func (w *validationWriter) writePrinted(object map[string]any) error {
	text, err := json.Marshal(object)
	if err != nil {
		return err
	}
	cells, now, err := w.cells(text)
	if err != nil {
		return err
	}
	return w.write(&validationLine{Print: object, Cells: cells, Now: now})
}

// change sets a value in an object, or removes it if that is nil.
type change struct {
	pointer string
	value   any
}

func (c change) apply(object map[string]any) map[string]any {
	path := strings.Split(c.pointer, "/")[1:]
	for i, key := range path {
		path[i] = strings.NewReplacer("~1", "/", "~0", "~").Replace(key)
	}
	return changed(object, path, c.value).(map[string]any)
}

func changed(tree any, path []string, value any) any {
	if len(path) == 0 {
		return value
	}
	switch tree := tree.(type) {
	case map[string]any:
		result := map[string]any{}
		for key, one := range tree {
			result[key] = one
		}
		if one := changed(tree[path[0]], path[1:], value); one != nil {
			result[path[0]] = one
		} else {
			delete(result, path[0])
		}
		return result
	case []any:
		index := 0
		fmt.Sscan(path[0], &index)
		result := append([]any{}, tree...)
		if one := changed(tree[index], path[1:], value); one != nil {
			result[index] = one
			return result
		}
		return append(result[:index:index], result[index+1:]...)
	default:
		panic(fmt.Sprintf("%v in %T", path, tree))
	}
}

// changesOf are the systematic changes of an object, in a fixed order.
func changesOf(object map[string]any) []change {
	var all []change
	addChanges(&all, "", object)
	return all
}

func addChanges(all *[]change, pointer string, value any) {
	add := func(value any) { *all = append(*all, change{pointer, value}) }
	switch value := value.(type) {
	case map[string]any:
		if pointer != "" && pointer != "/metadata" {
			add(nil)
			if len(value) > 0 {
				add(map[string]any{})
			}
		}
		for _, key := range sortedKeys(value) {
			if pointer == "" && (key == "apiVersion" || key == "kind") || pointer == "/metadata" && !changedMetadata[key] {
				continue
			}
			escaped := strings.NewReplacer("~", "~0", "/", "~1").Replace(key)
			addChanges(all, pointer+"/"+escaped, value[key])
		}
	case []any:
		add(nil)
		add([]any{})
		if len(value) > 0 {
			add(append(append([]any{}, value...), value[0]))
		}
		for i, item := range value {
			addChanges(all, fmt.Sprintf("%s/%d", pointer, i), item)
		}
	case string:
		for _, other := range []any{nil, "", "Bad_Value!", "a-valid-name"} {
			if other != value {
				add(other)
			}
		}
		// Longer than labels may be.
		if len(*all)%3 == 0 {
			add(strings.Repeat("a", 64))
		}
		if value != "" && strings.Trim(value, "0123456789.KMGTimn") == "" {
			add("-1")
			add("100G")
			add("0")
		}
	case float64:
		for _, other := range []float64{-1, 0, 1, 70000, 2147483647} {
			if other != value {
				add(other)
			}
		}
		add(nil)
	case bool:
		add(!value)
		add(nil)
	}
}

// changedMetadata are the fields of the metadata that are changed; the others are the same for all kinds.
var changedMetadata = map[string]bool{"name": true, "labels": true, "annotations": true}

func withoutStatus(object map[string]any) map[string]any {
	result := map[string]any{}
	for key, value := range object {
		if key != "status" {
			result[key] = value
		}
	}
	return result
}

func sortedKeys[V any](object map[string]V) []string {
	keys := make([]string, 0, len(object))
	for key := range object {
		keys = append(keys, key)
	}
	sort.Strings(keys)
	return keys
}

// merged applies a JSON merge patch.
func merged(target, patch any) any {
	patches, ok := patch.(map[string]any)
	if !ok {
		return patch
	}
	result := map[string]any{}
	if object, ok := target.(map[string]any); ok {
		for key, value := range object {
			result[key] = value
		}
	}
	for key, value := range patches {
		if value == nil {
			delete(result, key)
		} else {
			result[key] = merged(result[key], value)
		}
	}
	return result
}

// validatedKind is a kind whose objects are created and replaced by its strategy.
type validatedKind struct {
	// Name of the files: the plural name, with the group where two groups have the same.
	file     string
	version  schema.GroupVersion
	strategy validationStrategy
	// Strategy of the subresource `status`, if there is one.
	status rest.RESTUpdateStrategy
}

func (k validatedKind) plural() string {
	plural, _, _ := strings.Cut(k.file, ".")
	return plural
}

type validationStrategy interface {
	rest.RESTCreateStrategy
	rest.RESTUpdateStrategy
}
