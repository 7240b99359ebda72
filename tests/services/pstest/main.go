// Google's own Pub/Sub test server, on the port that is given, until it is told to stop.
package main

import (
	"log"
	"os"
	"os/signal"
	"strconv"
	"syscall"
	"time"

	"cloud.google.com/go/pubsub/v2/pstest"
)

func main() {
	port, err := strconv.Atoi(os.Args[1])
	if err != nil {
		log.Fatal(err)
	}
	pstest.SetMinAckDeadline(time.Second) // the service wants ten: tests would wait for that
	server := pstest.NewServerWithPort(port)
	log.Printf("listening on %s", server.Addr)
	stop := make(chan os.Signal, 1)
	signal.Notify(stop, os.Interrupt, syscall.SIGTERM)
	<-stop
	server.Close()
}
