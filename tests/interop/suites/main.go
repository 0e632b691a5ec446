// Command suites runs the tests of controller-runtime and of operators, unchanged, with narthex in place of etcd and
// kube-apiserver (envtest), and says which of them fail for want of what.
//
//	go run . --assets DIR --work DIR [--timeout DURATION] [PROJECT|SUITE...]
//
// Without names, the suites of controller-runtime. Each module is of one version, its tree and test programs are kept
// in the folder. known.tsv names each test that is known to fail with the capability that it waits for, or the reason
// why it fails with a kube-apiserver, too. A suite in which another test fails runs once more:
// a test that passes then is flaky. Exit status 1 if a test fails twice. The names of both are appended to the files
// that $NARTHEX_FLAKY_TESTS and $NARTHEX_FAILED_TESTS name.
package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"
)

const known = "known.tsv"

// A project is a Go module with suites. Tags are those of the build.
type project struct {
	name, module, version, tags string
	suites                      []suite
}

// A suite is the tests of one package of a module.
type suite struct {
	name, folder string
}

var projects = []project{
	{"controller-runtime", "sigs.k8s.io/controller-runtime", "v0.25.2", "", []suite{
		{"client", "pkg/client"},
		{"apiutil", "pkg/client/apiutil"},
		{"cache", "pkg/cache"},
		{"cluster", "pkg/cluster"},
		{"manager", "pkg/manager"},
		{"builder", "pkg/builder"},
		{"controller", "pkg/controller"},
		{"controllerutil", "pkg/controller/controllerutil"},
		{"recorder", "pkg/internal/recorder"},
		{"source", "pkg/source"},
		{"webhook", "pkg/webhook"},
		{"envtest", "pkg/envtest"},
		{"filters", "pkg/metrics/filters"},
		{"controlplane", "pkg/internal/testing/controlplane"},
		{"mgrintegration", "pkg/manager/internal/integration"},
		{"crinternal", "pkg/internal/controller"},
	}},
	{"training-operator", "github.com/kubeflow/training-operator", "v1.8.1", "", []suite{
		{"tensorflow", "pkg/controller.v1/tensorflow"},
		{"pytorch", "pkg/controller.v1/pytorch"},
		{"mpi", "pkg/controller.v1/mpi"},
		{"xgboost", "pkg/controller.v1/xgboost"},
		{"mxnet", "pkg/controller.v1/mxnet"},
		{"paddlepaddle", "pkg/controller.v1/paddlepaddle"},
	}},
	{"kuberay", "github.com/ray-project/kuberay/ray-operator", "v1.5.0", "", []suite{
		{"ray", "controllers/ray"},
		{"ray-webhooks", "pkg/webhooks/v1"},
	}},
	{"kro", "github.com/kubernetes-sigs/kro", "v0.9.4", "", []suite{
		{"kro-core", "test/integration/suites/core"},
	}},
	{"keda", "github.com/kedacore/keda/v2", "v2.21.0", "", []suite{
		{"keda-controllers", "controllers/keda"},
	}},
	{"elastic", "github.com/elastic/cloud-on-k8s/v3", "v3.5.0", "integration", []suite{
		{"elastic-certificates", "pkg/controller/common/certificates"},
		{"elastic-watches", "pkg/controller/common/watches"},
		{"elastic-kibana", "pkg/controller/kibana"},
		{"elastic-license", "pkg/controller/license"},
		{"elastic-trial", "pkg/controller/license/trial"},
	}},
	{"karpenter", "sigs.k8s.io/karpenter", "v1.14.0", "", []suite{
		{"karpenter-lifecycle", "pkg/controllers/nodeclaim/lifecycle"},
		{"karpenter-termination", "pkg/controllers/node/termination"},
		{"karpenter-state", "pkg/controllers/state"},
		{"karpenter-provisioning", "pkg/controllers/provisioning"},
	}},
	{"gatekeeper", "github.com/open-policy-agent/gatekeeper/v3", "v3.23.1", "", []suite{
		{"gatekeeper-watch", "pkg/watch"},
		{"gatekeeper-readiness", "pkg/readiness"},
		{"gatekeeper-connectionstatus", "pkg/controller/connectionstatus"},
		{"gatekeeper-config", "pkg/controller/config"},
		{"gatekeeper-export", "pkg/controller/export"},
	}},
}

// wanted returns the suites of a project that are to run.
func (one project) wanted(names []string) []suite {
	if len(names) == 0 && one.name == projects[0].name || slices.Contains(names, one.name) {
		return one.suites
	}
	return slices.DeleteFunc(slices.Clone(one.suites), func(suite suite) bool { return !slices.Contains(names, suite.name) })
}

// A result is the outcome of the tests of a suite, by name.
type result struct {
	passed map[string]bool
	// Why tests failed, where the report of Ginkgo says so.
	failures map[string]string
	took     time.Duration
}

// unexpected returns the failed tests that none of the known ones names.
func (one result) unexpected(name string, expected map[string]string) []string {
	var wrong []string
	for test, ok := range one.passed {
		if _, isKnown := expected[name+"\t"+test]; !ok && !isKnown {
			wrong = append(wrong, test)
		}
	}
	slices.Sort(wrong)
	return wrong
}

func main() {
	assets := flag.String("assets", "", "folder with the etcd and the kube-apiserver under test")
	work := flag.String("work", "", "folder of the module's tree, the test programs and the logs")
	timeout := flag.Duration("timeout", 10*time.Minute, "time for each suite")
	flag.Parse()
	if *assets == "" || *work == "" {
		flag.Usage()
		os.Exit(2)
	}
	unexpected, err := run(*assets, *work, *timeout, flag.Args())
	if err != nil {
		fmt.Fprintln(os.Stderr, "suites:", err)
		os.Exit(1)
	}
	if unexpected > 0 {
		os.Exit(1)
	}
}

func run(assets, work string, timeout time.Duration, names []string) (int, error) {
	for _, name := range names {
		hasName := func(one project) bool { return len(one.wanted([]string{name})) > 0 }
		if !slices.ContainsFunc(projects, hasName) {
			return 0, fmt.Errorf("%s is neither a project nor a suite", name)
		}
	}
	expected, err := readKnown(known)
	if err != nil {
		return 0, err
	}
	if assets, err = filepath.Abs(assets); err != nil {
		return 0, err
	}
	if work, err = filepath.Abs(work); err != nil {
		return 0, err
	}
	unexpected := 0
	for _, project := range projects {
		suites := project.wanted(names)
		if len(suites) == 0 {
			continue
		}
		wrong, err := runProject(project, suites, expected, work, assets, timeout)
		if err != nil {
			return 0, err
		}
		unexpected += wrong
	}
	return unexpected, nil
}

// runProject runs suites of a project and prints their table. Returns the number of failed tests that are not known to
// fail.
func runProject(project project, suites []suite, expected map[string]string, work, assets string, timeout time.Duration) (int, error) {
	tree, err := project.tree(work)
	if err != nil {
		return 0, err
	}
	fmt.Printf("\n%s %s\n\n| Suite | Passed | Of | Seconds | What the others wait for |\n|---|---|---|---|---|\n", project.module, project.version)
	unexpected, passed, all := 0, 0, 0
	var failures strings.Builder
	for _, one := range suites {
		result, flaky, err := runTwice(one, expected, func(attempt int) (result, error) {
			return runSuite(one, attempt, tree, project.tags, work, assets, timeout)
		})
		if err != nil {
			return 0, fmt.Errorf("%s: %w", one.name, err)
		}
		wrong := result.unexpected(one.name, expected)
		waits, good := map[string]int{}, 0
		for name, ok := range result.passed {
			if ok {
				good++
			} else if capability, isKnown := expected[one.name+"\t"+name]; isKnown {
				waits[capability]++
			}
		}
		var reasons []string
		for capability, count := range waits {
			reasons = append(reasons, fmt.Sprintf("%s %d", capability, count))
		}
		slices.Sort(reasons)
		for _, name := range wrong {
			reasons = append(reasons, "**"+name+"**")
			fmt.Fprintf(&failures, "\n%s: %s\n%s\n", one.name, name, result.failures[name])
		}
		for _, name := range flaky {
			reasons = append(reasons, name+" (flaky)")
		}
		fmt.Printf("| %s | %d | %d | %.0f | %s |\n", one.name, good, len(result.passed), result.took.Seconds(), strings.Join(reasons, ", "))
		unexpected, passed, all = unexpected+len(wrong), passed+good, all+len(result.passed)
		if len(result.passed) == 0 {
			unexpected++
			fmt.Fprintf(&failures, "\n%s: no test ran\n", one.name)
		}
		if err := errors.Join(record("NARTHEX_FAILED_TESTS", one.name, wrong), record("NARTHEX_FLAKY_TESTS", one.name, flaky)); err != nil {
			return 0, err
		}
	}
	fmt.Print(failures.String())
	fmt.Printf("\n%d of %d passed; %d failed for no known reason. Logs: %s\n", passed, all, unexpected, filepath.Join(work, "logs"))
	return unexpected, nil
}

// runTwice runs a suite, and once more if a test fails that is not known to. Returns the last result, in which a test
// that failed twice, or did not run again, has failed; and the tests that failed once.
func runTwice(one suite, expected map[string]string, run func(attempt int) (result, error)) (result, []string, error) {
	first, err := run(1)
	wrong := first.unexpected(one.name, expected)
	if err != nil || len(wrong) == 0 && len(first.passed) > 0 {
		return first, nil, err
	}
	second, err := run(2)
	if err != nil {
		return second, nil, err
	}
	var flaky []string
	for _, name := range wrong {
		if second.passed[name] {
			flaky = append(flaky, name)
			fmt.Printf("%s: %s failed once:\n%s\n", one.name, name, first.failures[name])
		} else {
			second.passed[name] = false
		}
	}
	for _, name := range second.unexpected(one.name, expected) {
		if first.passed[name] {
			flaky = append(flaky, name)
			second.passed[name] = true
		}
	}
	return second, flaky, nil
}

// record appends tests to the file that an environment variable names, if any.
func record(variable, suite string, tests []string) error {
	path := os.Getenv(variable)
	if path == "" || len(tests) == 0 {
		return nil
	}
	file, err := os.OpenFile(path, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	defer file.Close()
	for _, test := range tests {
		if _, err := fmt.Fprintf(file, "suites: %s: %s\n", suite, test); err != nil {
			return err
		}
	}
	return nil
}

// readKnown reads lines of suite, test and capability.
func readKnown(path string) (map[string]string, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	tests := map[string]string{}
	for number, line := range strings.Split(strings.TrimSpace(string(text)), "\n") {
		parts := strings.Split(line, "\t")
		if len(parts) != 3 {
			return nil, fmt.Errorf("%s:%d: want suite, test and capability, separated by tabs", path, number+1)
		}
		tests[parts[0]+"\t"+parts[1]] = parts[2]
	}
	return tests, nil
}

// tree returns a folder with the module, which its tests write into.
func (one project) tree(work string) (string, error) {
	tree := filepath.Join(work, one.name+"-"+one.version)
	if _, err := os.Stat(filepath.Join(tree, "go.mod")); err == nil {
		return tree, nil
	}
	download := exec.Command("go", "mod", "download", "-json", one.module+"@"+one.version)
	download.Env = append(os.Environ(), "GOFLAGS=-mod=mod")
	out, err := download.Output()
	if err != nil {
		return "", fmt.Errorf("download of %s: %w", one.module, err)
	}
	var found struct{ Dir string }
	if err := json.Unmarshal(out, &found); err != nil {
		return "", err
	}
	partial := tree + ".partial"
	if err := os.RemoveAll(partial); err != nil {
		return "", err
	}
	if err := os.CopyFS(partial, os.DirFS(found.Dir)); err != nil {
		return "", err
	}
	// The module cache is read-only, and has no programs.
	err = filepath.WalkDir(partial, func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if strings.HasSuffix(path, ".sh") || entry.IsDir() {
			return os.Chmod(path, 0o755)
		}
		return os.Chmod(path, 0o644)
	})
	if err != nil {
		return "", err
	}
	return tree, os.Rename(partial, tree)
}

func runSuite(one suite, attempt int, tree, tags, work, assets string, timeout time.Duration) (result, error) {
	program := filepath.Join(work, "programs", one.name+".test")
	if _, err := os.Stat(program); errors.Is(err, fs.ErrNotExist) {
		build := exec.Command("go", "test", "-c", "-tags="+tags, "-o", program, "./"+one.folder)
		build.Dir, build.Stderr = tree, os.Stderr
		build.Env = append(os.Environ(), "GOFLAGS=-mod=mod")
		if err := build.Run(); err != nil {
			return result{}, err
		}
	}
	logs := filepath.Join(work, "logs")
	if err := os.MkdirAll(logs, 0o755); err != nil {
		return result{}, err
	}
	name := fmt.Sprintf("%s-%d", one.name, attempt)
	report := filepath.Join(logs, name+".json")
	os.Remove(report)
	log, err := os.Create(filepath.Join(logs, name+".log"))
	if err != nil {
		return result{}, err
	}
	defer log.Close()
	began := time.Now()
	test := exec.Command(program, "-test.v", "--ginkgo.v", "--ginkgo.no-color", "--ginkgo.json-report="+report,
		"--ginkgo.timeout="+timeout.String(), "-test.timeout="+(timeout+20*time.Second).String())
	test.Dir, test.Stdout, test.Stderr = filepath.Join(tree, one.folder), log, log
	test.Env = append(os.Environ(), "KUBEBUILDER_ASSETS="+assets)
	// Its status says only that a test failed.
	var failed *exec.ExitError
	if err := test.Run(); err != nil && !errors.As(err, &failed) {
		return result{}, err
	}
	found := result{passed: map[string]bool{}, failures: map[string]string{}, took: time.Since(began)}
	return found, errors.Join(found.readReport(report), found.readLog(log.Name()))
}

// readReport adds the outcome of the specs of Ginkgo.
func (one result) readReport(path string) error {
	text, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	} else if err != nil {
		return err
	}
	var reports []struct {
		SpecReports []struct {
			ContainerHierarchyTexts           []string
			LeafNodeType, LeafNodeText, State string
			Failure                           struct{ Message string }
		}
	}
	if err := json.Unmarshal(text, &reports); err != nil {
		return err
	}
	for _, report := range reports {
		for _, spec := range report.SpecReports {
			isSpec, ok := spec.LeafNodeType == "It", spec.State == "passed"
			if spec.State == "pending" || spec.State == "skipped" || !isSpec && ok {
				continue
			}
			name := strings.Join(append(spec.ContainerHierarchyTexts, spec.LeafNodeText), " ")
			if !isSpec {
				name = "<" + spec.LeafNodeType + ">"
			}
			one.passed[name] = ok
			one.failures[name] = spec.Failure.Message
		}
	}
	return nil
}

var outcome = regexp.MustCompile(`^\s*--- (PASS|FAIL): (\S+)`)

// readLog adds the outcome of Go tests. The test that runs the specs of a suite fails with any of them.
func (one result) readLog(path string) error {
	hasFailedSpecs := false
	for _, ok := range one.passed {
		hasFailedSpecs = hasFailedSpecs || !ok
	}
	log, err := os.Open(path)
	if err != nil {
		return err
	}
	defer log.Close()
	lines := bufio.NewScanner(log)
	lines.Buffer(nil, 16<<20)
	for lines.Scan() {
		match := outcome.FindStringSubmatch(lines.Text())
		if match == nil || hasFailedSpecs && match[1] == "FAIL" && !strings.Contains(match[2], "/") {
			continue
		}
		one.passed["go test "+match[2]] = match[1] == "PASS"
	}
	return lines.Err()
}
