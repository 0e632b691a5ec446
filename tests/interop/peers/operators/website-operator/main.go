// Command website-operator is an operator as kubebuilder lays it out: a manager with leader election, a controller with
// finalizer, status and an owned ConfigMap, and a conversion webhook between two versions of Website.
package main

import (
	"flag"
	"os"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/log/zap"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"
	"sigs.k8s.io/controller-runtime/pkg/webhook"

	v1 "narthex/interop/operators/website-operator/v1"
	"narthex/interop/operators/website-operator/v1alpha1"
)

func main() {
	port := flag.Int("webhook-port", 9443, "port of the conversion webhook")
	namespace := flag.String("leader-election-namespace", "default", "namespace of the Lease")
	certificates := flag.String("webhook-cert-dir", "", "directory with tls.crt and tls.key")
	flag.Parse()
	ctrl.SetLogger(zap.New())
	if err := run(*namespace, *port, *certificates); err != nil {
		ctrl.Log.Error(err, "the manager ended")
		os.Exit(1)
	}
}

func run(namespace string, port int, certificates string) error {
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{clientgoscheme.AddToScheme, v1.AddToScheme, v1alpha1.AddToScheme} {
		if err := add(scheme); err != nil {
			return err
		}
	}
	manager, err := ctrl.NewManager(ctrl.GetConfigOrDie(), ctrl.Options{
		Scheme:                        scheme,
		LeaderElection:                true,
		LeaderElectionID:              "website-operator.web.example.com",
		LeaderElectionNamespace:       namespace,
		LeaderElectionReleaseOnCancel: true,
		Metrics:                       metricsserver.Options{BindAddress: "0"},
		WebhookServer:                 webhook.NewServer(webhook.Options{Host: "127.0.0.1", Port: port, CertDir: certificates}),
	})
	if err != nil {
		return err
	}
	err = ctrl.NewControllerManagedBy(manager).For(&v1.Website{}).Owns(&corev1.ConfigMap{}).
		Complete(&reconciler{Client: manager.GetClient(), recorder: manager.GetEventRecorder("website-operator")})
	if err != nil {
		return err
	}
	if err := ctrl.NewWebhookManagedBy(manager, &v1.Website{}).Complete(); err != nil {
		return err
	}
	return manager.Start(ctrl.SetupSignalHandler())
}
