// The API server of Kubernetes with its store and its controller of Jobs, in one process, for tests.
// There are no nodes: whoever tests plays the kubelet, through the API.
package main

import (
	"context"
	"fmt"
	"net/url"
	"os"
	"time"

	"go.etcd.io/etcd/server/v3/embed"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/component-base/cli"
	"k8s.io/kubernetes/cmd/kube-apiserver/app"
	"k8s.io/kubernetes/pkg/controller/job"
)

// kubetest FOLDER ETCD-PORT ETCD-PEER-PORT KUBECONFIG FLAGS-OF-KUBE-APISERVER…
func main() {
	folder, clients, peers, kubeconfig := os.Args[1], at(os.Args[2]), at(os.Args[3]), os.Args[4]
	config := embed.NewConfig()
	config.Dir = folder
	config.ListenClientUrls, config.AdvertiseClientUrls = clients, clients
	config.ListenPeerUrls, config.AdvertisePeerUrls = peers, peers
	config.InitialCluster = config.InitialClusterFromName(config.Name)
	config.UnsafeNoFsync = true
	config.LogLevel = "error"
	store, err := embed.StartEtcd(config)
	if err != nil {
		fail(err)
	}
	<-store.Server.ReadyNotify()
	go runJobs(kubeconfig)
	command := app.NewAPIServerCommand()
	command.SetArgs(append(os.Args[5:], "--etcd-servers="+clients[0].String()))
	os.Exit(cli.Run(command))
}

func at(port string) []url.URL {
	return []url.URL{{Scheme: "http", Host: "127.0.0.1:" + port}}
}

// runJobs makes the pods of Jobs, once the server answers.
func runJobs(kubeconfig string) {
	ctx := context.Background()
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		fail(err)
	}
	client := kubernetes.NewForConfigOrDie(config)
	for {
		if _, err := client.Discovery().RESTClient().Get().AbsPath("/readyz").DoRaw(ctx); err == nil {
			break
		}
		time.Sleep(100 * time.Millisecond)
	}
	factory := informers.NewSharedInformerFactory(client, 0)
	controller, err := job.NewController(ctx, factory.Core().V1().Pods(), factory.Batch().V1().Jobs(), client)
	if err != nil {
		fail(err)
	}
	factory.Start(ctx.Done())
	controller.Run(ctx, 2)
}

func fail(err error) {
	fmt.Fprintln(os.Stderr, err)
	os.Exit(1)
}
