package main

const tableTime = "2026-06-15T12:00:00Z"

// tableObjects are the objects whose rows are asked for. Ages are relative to tableTime.
var tableObjects = []string{
	`{"apiVersion":"a.io/v1","kind":"Case","metadata":{"name":"a","namespace":"n","creationTimestamp":"2026-06-15T11:59:50Z","labels":{"l":"v","a.io/x":"y"}},
"spec":{"s":"text","i":5,"big":1000000,"max":9223372036854775807,"f":1.5,"whole":2.0,"huge":1e21,"small":1e-7,"b":true,"no":false,"nil":null,"empty":"","zero":0,
"o":{"k":"v","n":{"m":1}},"l":["x","y","z"],"n":[3,1,2],"e":[],"eo":{},"items":[{"name":"one","v":1,"ok":true,"t":"2026-06-15T00:00:00Z"},{"name":"two","v":2.5,"ok":false},{"v":3}],
"a.b":"dotted","a-b":"dashed","1":"digit","é":"accent","html":"<a & b>","quote":"say \"hi\"\n","date":"2026-06-14T12:00:00Z","day":"2026-06-14","bad":"yesterday","num":"12","future":"2027-01-01T00:00:00Z"},
"status":{"conditions":[{"type":"Ready","status":"True","reason":"Ok"},{"type":"Synced","status":"False"}],"replicas":3}}`,
	`{"apiVersion":"a.io/v1","kind":"Case","metadata":{"name":"b"},"spec":{"l":"text","items":{"name":"n"},"o":[1],"s":7,"i":"8","f":"1.5","b":"true","date":5,"big":-1.9,"max":1e19},"status":{"conditions":[]}}`,
	`{"apiVersion":"a.io/v1","kind":"Case","metadata":{"creationTimestamp":null}}`,
	`{"apiVersion":"a.io/v1","kind":"Case"}`,
}

var tablePaths = []string{
	".spec.s", ".spec.i", ".spec.big", ".spec.max", ".spec.f", ".spec.whole", ".spec.huge", ".spec.small", ".spec.b", ".spec.no", ".spec.nil", ".spec.empty", ".spec.zero", ".spec.o", ".spec.l", ".spec.n", ".spec.e", ".spec.eo",
	".spec.items", ".spec.html", ".spec.quote", ".spec.date", ".spec.day", ".spec.bad", ".spec.num", ".spec.future", ".spec.missing", ".spec.missing.deeper", ".spec.s.deeper", ".spec", ".", "", ".metadata.name", ".metadata.creationTimestamp",
	".metadata.labels.l", `.metadata.labels.a\.io/x`, ".metadata.labels['a.io/x']", `.metadata.labels["a.io/x"]`, `.spec.a\.b`, ".spec['a.b']", ".spec['s']", `.spec["s"]`, ".spec.a-b", ".spec['a-b']", ".spec.1", ".spec['1']", ".spec.é", ".spec['é']",
	".spec.l[0]", ".spec.l[2]", ".spec.l[3]", ".spec.l[-1]", ".spec.l[-1:]", ".spec.l[-4]", ".spec.l[*]", ".spec.l[0:2]", ".spec.l[1:]", ".spec.l[:1]", ".spec.l[:]", ".spec.l[::2]", ".spec.l[0,2]", ".spec.l[2:1]", ".spec.l[0:9]", ".spec.l[::-1]", ".spec.l[::0]", ".spec.l[]", ".spec.e[0]", ".spec.e[*]",
	".spec.items[0].name", ".spec.items[2].name", ".spec.items[*].name", ".spec.items[*].v", ".spec.items[*]", `.spec.items[?(@.name=="two")].v`, `.spec.items[?(@.name=='two')].v`, `.spec.items[?(@.name == "two")].v`, `.spec.items[?(@.v>1)].v`, `.spec.items[?(@.v>=2.5)].name`, `.spec.items[?(@.v<2)].name`, `.spec.items[?(@.v!=1)].v`,
	`.spec.items[?(@.name)].v`, `.spec.items[?(@.ok==true)].name`, `.spec.items[?(@.missing=="x")].v`, `.spec.items[?(@.name=="none")].v`, `.spec.items[?(@.v==1)].v`, `.spec.items[?(@.v=="1")].v`, `.spec.items[?("two"==@.name)].v`, `.spec.items[?(@.name=="one" && @.v==1)].v`, `.spec.items[?(@.name=="one"||@.v==1)].v`, `.spec.items[?(@.v>"a")].v`, `.spec.items[?(@)].v`, `.spec.items[?()].v`,
	`.spec.items[?(@.name=~"o.*")].v`, `.spec.items[?(@.t)].t`, `.spec.n[?(@>1)]`, `.spec.n[?(@==1)]`, `.spec.l[?(@=="y")]`,
	`.status.conditions[?(@.type=="Ready")].status`, `.status.conditions[?(@.type=="Synced")].reason`, `.status.conditions[?(@.type=="Other")].status`, ".status.conditions[0]", ".status.conditions[*].type", ".status.conditions[-1:].type", ".status.replicas",
	"..name", "..type", "..missing", ".spec..m", ".spec.o.*", ".spec.*", ".spec.o.n.m", "..", "...name", ".*", ".spec.o..", "$.spec.s", "$", "@", "@.spec.s", "spec.s", "spec", "s", "['spec']['s']", ".['spec'].s", ".spec[s]", ".spec[\"s\"", ".spec['s", ".spec.l[", ".spec.l[a]", ".spec.l[0", ".spec.l[0]]", ".spec.l[0][0]", ".spec.l[1.5]", ".spec.l[+1]", ".spec.l[ 1 ]", ".spec.l[1 ]",
	"{.spec.s}", ".spec.s}", "{.spec.s", ".spec.s}{.spec.i", ".spec.s}-{.spec.i", ".spec.s}text", "range .spec.l[*]}{@}{end", "range .spec.l[*]", "end", `"text"`, "'text'", "5", "1.5", "true", `"a" .spec.s`, ".spec.s .spec.i", ".spec. s", ".spec .s", " .spec.s", ".spec.s ", "\n.spec.s", ".spec/s", ".spec,s", ".spec:s", ".spec(s)", ".spec.s|", "?", "!", "-", ".-", ".spec.s?", ".spec.$", ".spec.@", ".spec.s[0]", ".spec.i[0]", ".spec.o[0]", ".spec.o['k']", ".spec.o['k','n']", ".spec['s','i']", ".spec['s'][0]", `.spec["a\.b"]`, `.spec['a\.b']`, `.spec.a\\.b`, `\.spec`, ".spec.", ".spec..", "..spec", "..[0]", "..*", "..['name']", ".spec.l.0", ".spec.l.length", ".length()", ".spec.l[(@.length-1)]", ".spec.l[*][*]", ".spec.items[*].name[0]", ".spec.items.name", ".spec.items[?(@.name==\"two\"].v", ".spec.items[?(@.name==two)].v", ".spec.items[?(@.v==1.0)].v", ".spec.items[?(@.v in [1])].v", ".spec.items[?(@.name==\"t\\\"wo\")].v", ".spec.items[?(@.type==\"a)]\")].v", ".spec.items[?(@.a[0]==1)].v", "$..name", "$['spec']", "$.spec.l[0]", ".kind", ".apiVersion", "..creationTimestamp",
}

var columnTypes = []string{"string", "integer", "number", "boolean", "date"}

func tableCases(g *generator) []question {
	var cases []question
	add := func(columns []any, object string) {
		cases = append(cases, question{Op: "table", Columns: raw(columns), Object: raw(parse(object)), Now: tableTime})
	}
	column := func(columnType, path string) tree {
		return tree{"name": "C", "type": columnType, "jsonPath": path}
	}
	if g != nil {
		columns := []any{}
		for range 1 + g.IntN(4) {
			path := pick(g, tablePaths...)
			if len(columns) > 0 && g.chance(3) {
				path = pick(g, tablePaths[:30]...)
			}
			columns = append(columns, column(pick(g, columnTypes...), path))
		}
		add(columns, g.tableObject())
		return cases
	}
	for _, object := range tableObjects {
		cases = append(cases, question{Op: "table", Object: raw(parse(object)), Now: tableTime})
	}
	// Each type prints each value.
	for _, path := range tablePaths[:30] {
		var columns []any
		for _, columnType := range append(columnTypes, "", "other") {
			columns = append(columns, column(columnType, path))
		}
		add(columns, tableObjects[0])
		add(columns, tableObjects[1])
	}
	for _, path := range tablePaths {
		add([]any{column("string", path)}, tableObjects[0])
	}
	add([]any{}, tableObjects[0])
	add([]any{tree{"name": "C", "type": "string", "format": "byte", "description": "d", "priority": 1, "jsonPath": ".spec.s"}, tree{}}, tableObjects[0])
	// Ages of all sizes.
	for _, created := range []string{"2026-06-15T12:00:00Z", "2026-06-15T11:59:59Z", "2026-06-15T11:58:01Z", "2026-06-15T11:58:00Z", "2026-06-15T11:57:59Z", "2026-06-15T11:50:01Z", "2026-06-15T11:50:00Z", "2026-06-15T11:30:00Z", "2026-06-15T09:00:01Z",
		"2026-06-15T09:00:00Z", "2026-06-15T08:59:59Z", "2026-06-15T06:30:00Z", "2026-06-15T04:00:00Z", "2026-06-15T03:59:00Z", "2026-06-14T12:00:00Z", "2026-06-13T12:00:01Z", "2026-06-13T12:00:00Z", "2026-06-13T10:00:00Z", "2026-06-10T01:00:00Z", "2026-06-07T12:00:00Z", "2026-06-07T11:00:00Z", "2025-06-15T12:00:00Z", "2024-06-16T12:00:00Z",
		"2024-06-15T12:00:00Z", "2024-06-01T12:00:00Z", "2023-01-01T00:00:00Z", "2018-06-17T12:00:00Z", "2018-06-16T12:00:00Z", "2000-01-01T00:00:00Z", "1970-01-01T00:00:00Z", "0001-01-01T00:00:00Z", "2026-06-15T12:00:10Z", "2027-06-15T12:00:00Z", "2026-06-15T13:59:50+02:00", "2026-06-15T11:59:50-01:00"} {
		add([]any{column("date", ".metadata.creationTimestamp"), column("date", ".spec.t")},
			`{"apiVersion":"a.io/v1","kind":"Case","metadata":{"name":"a","creationTimestamp":"`+created+`"},"spec":{"t":"`+created+`"}}`)
	}
	return cases
}

// tableObject is a small object with some of the fields of the first of tableObjects.
func (g *generator) tableObject() string {
	object := parse(tableObjects[0]).(tree)
	spec := object["spec"].(tree)
	for _, name := range sortedKeys(spec) {
		if name != "items" && name != "l" && g.chance(2) {
			delete(spec, name)
		}
	}
	if g.chance(3) {
		spec[pick(g, "s", "i", "f", "b", "o", "l", "date", "items")] = pick[any](g, 1, "a", 1.5, true, nil, []any{}, tree{}, []any{[]any{1}, "x"}, "2026-01-01T00:00:00Z")
	}
	return string(raw(object))
}
